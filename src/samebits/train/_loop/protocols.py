"""What loops and validations need of the run that they belong to."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from samebits._context import Words
from samebits.train._completeness.completeness import Completeness
from samebits.train._loop.loops import Loops
from samebits.train._loop.preemption import Preemption
from samebits.train._saving.commit_policy import Saving
from samebits.train._state.resume import Resuming
from samebits.train._state.run_state import RunState, Stateful


class Owner(Protocol):
    """A `Run`, as its loops see it."""

    key: Words
    run_dir: Path | str | None
    objects: dict[str, Stateful]
    preemption: Preemption
    _loops: Loops
    _saving: Saving
    _resuming: Resuming
    _completeness: Completeness

    @property
    def state(self) -> RunState:
        """What the user keeps in the run."""
        ...

    def check_open(self, call: str) -> None:
        """Raises outside the `with` block."""
        ...

    @property
    def stop_asked(self) -> bool:
        """Whether the loop under way is to end."""
        ...

    def end_loop(self, loop: str) -> None:
        """The loop is over."""
        ...

    def end_inner_loop(self) -> None:
        """A loop inside the body of another's step is over."""
        ...
