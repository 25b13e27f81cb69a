"""The parts of a run that its loops and validations use."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from samebits._context import Words
from samebits.train._completeness.completeness import Completeness
from samebits.train._loop.loop_positions import Loops
from samebits.train._loop.preemption import Preemption
from samebits.train._saving.boundary_commits import CommitPolicy
from samebits.train._state.object_states import RunState, Stateful
from samebits.train._state.resume import ResumeState


class RunView(Protocol):
    """A `Run`, as its loops use it."""

    key: Words
    run_dir: Path | str | None
    objects: dict[str, Stateful]
    preemption: Preemption
    _loops: Loops
    _saving: CommitPolicy
    _resuming: ResumeState
    _completeness: Completeness

    @property
    def state(self) -> RunState:
        """The user's plain values and tensors."""
        ...

    def _check_open(self, call: str) -> None:
        """Raises `InvalidArgumentError` outside the `with` block."""
        ...

    @property
    def _stop_requested(self) -> bool:
        """True if the loop under way should end."""
        ...

    def _end_loop(self, loop: str) -> None:
        """Ends the loop."""
        ...

    def _end_inner_loop(self) -> None:
        """Ends a loop inside the body of another's step."""
        ...
