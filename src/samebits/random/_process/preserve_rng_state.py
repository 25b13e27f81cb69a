"""Preserves a step's draws while other code runs inside the step, such as a validation."""

from __future__ import annotations

from collections.abc import Callable

from samebits._context import process
from samebits._inspect import rng_states
from samebits.random._global_generator import OfTheProcess
from samebits.random._process import draw_counts


def preserve_rng_state() -> Callable[[], None]:
    """Saves the states of all generators of the process and the count of draws; the returned function restores them."""
    states, counted = rng_states.of_process(), draw_counts.snapshot()
    own = process.generator
    here = own.position_state() if isinstance(own, OfTheProcess) else None

    def restore() -> None:
        states.restore()
        draw_counts.restore(counted)
        if here is not None and process.generator is own:
            own.restore_position(here)

    return restore
