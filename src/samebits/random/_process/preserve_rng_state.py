"""What runs inside a step, a validation say, leaves the step's own draws where they were."""

from __future__ import annotations

from collections.abc import Callable

from samebits._context import process
from samebits._inspect import rng_states
from samebits.random._global_generator import OfTheProcess
from samebits.random._process import draw_counts


def preserve_rng_state() -> Callable[[], None]:
    """Notes where all generators of the process stand; what it returns puts them, and the count of draws, back."""
    states, counted = rng_states.of_process(), draw_counts.snapshot()
    own = process.generator
    here = own.position_state() if isinstance(own, OfTheProcess) else None

    def restore() -> None:
        states.restore()
        draw_counts.restore(counted)
        if here is not None and process.generator is own:
            own.restore_position(here)

    return restore
