"""What a run saves and when: the state between two iterations, and between two batches of a validation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from samebits._context import Position, process
from samebits._inspect import user_code
from samebits.checkpoint import Manifest
from samebits.errors import SamebitsError
from samebits.train._distributed import rank_agreement
from samebits.train._loop.loops import Loops
from samebits.train._loop.preemption import Preemption
from samebits.train._saving.async_commits import CommitMetadata, Commits
from samebits.train._saving.best_commits import Best
from samebits.train._saving.digest_chain import Chain
from samebits.train._state import compatibility, validation_state
from samebits.train._state import run_state as state
from samebits.train._state.aliases import InHand
from samebits.train._state.environment_check import Environment
from samebits.train._state.seed_check import Origin
from samebits.train._state.validation_state import Look

Tell = Callable[[str, Position], None]
"""Tells whoever listens to the run: of an event, and the position it is about."""


class Saving:
    """Gathers the state of a run at its boundaries and has it committed, on all ranks alike; leaves when a signal came."""

    def __init__(
        self,
        run_dir: Path | str | None,
        commits: Commits | None,
        best: Best,
        objects: Mapping[str, state.Stateful],
        run_state: state.RunState,
        loops: Loops,
        grace: float,
        tell: Tell,
    ) -> None:
        self.commits = commits
        self.ranks = rank_agreement.Alone()
        self.preemption = Preemption(grace, self._planned, self._durable)
        self._run_dir, self._best, self._tell = run_dir, best, tell
        self._objects, self._run_state, self._loops = objects, run_state, loops
        self.in_hand = InHand()
        self._chain = Chain()
        self._program: dict[str, Any] = {}
        self._environment: Environment | None = None
        self._asked = self._told_restart = self._told_everywhere = False
        self._refused: SamebitsError | None = None
        """Why a commit that nobody waited for failed: on rank 0, which raises it where all ranks do."""

    def find(self) -> rank_agreement.Opened:
        """Opens the run directory and reads the newest commit; on rank 0 alone."""
        if self.commits is None:
            return None
        store = self.commits.store
        store.open()
        found = store.newest()
        for path, reason in store.skipped:
            user_code.warn(f"skipped the damaged commit {path.name}: {reason}")
        if found is not None:
            compatibility.check_kind(*found, str(self._run_dir))
        if isinstance(self._run_dir, Path):
            self._chain.open(self._run_dir, found[0].step if found else -1)
        return found

    def begin(self, origin: Origin, environment: Environment, found: Manifest | None) -> None:
        """The run is open; it goes on from the commit that was `found`."""
        self._program, self._environment = origin.to_dict(), environment
        if found is not None:
            self._chain.resume(found.rolling, found.position["loop"], found.step)

    def loss(self, value: Any) -> None:
        """A loss of the step under way."""
        self._chain.loss(value)

    def best(self, value: float, *, everywhere: bool) -> None:
        """How good the state at the next boundary is; among the best, it is committed.

        `everywhere`: all ranks say so at this step. Else the commit waits until they ask each other.
        """
        self._best.value, self._told_everywhere = value, everywhere
        if self.commits is None or self.ranks.rank:  # rank 0 knows what is kept
            return
        if self._best.among(value, self.commits.store.values()):
            self._asked = True

    def check_best(self) -> None:
        """Warns where what decides about the best commits was never logged, before a resume neither."""
        if self.commits is None or not self._best.unlogged:
            return
        if all(value is None for value in self.commits.store.values().values()):
            self._best.warn("Run")

    def ask(self) -> None:
        """A commit is wanted at the next boundary: now, behind a loop that has ended."""
        self._asked = True
        if process.position is None and self._loops.current is None and self._loops.done:
            with self.preemption.saving():
                self._commit(self._loops.position())

    def between(self, position: Position, *, over: bool, outermost: bool) -> None:
        """Between two iterations: commit if it is time and the state is complete, and leave if a signal came."""
        if not outermost:
            if self.preemption.requested and self.preemption.alone:
                self.preemption.leave()
            return
        self._boundary(position)
        decision = self.ranks.decide(position, self._wishes(position, over=over))
        if decision.commit:
            with self.preemption.saving():
                self._commit(position, wait=decision.wait)
        if decision.leave:  # whichever rank was told
            self.preemption.leave()

    def stopped(self, position: Position) -> None:
        """The outermost loop was stopped, and left by `break`."""
        with self.preemption.saving():
            self._boundary(position)
            self._commit(position)

    def interrupted(self, position: Position, *, outermost: bool) -> NoReturn:
        """A signal came while the run waited for the batch of `position`: commit the boundary before it, and leave."""
        if outermost:
            with self.preemption.saving():
                self._commit(position)
        self.preemption.leave()

    def validating(self, position: Position, look: Look | None) -> None:
        """Between two batches of a validation (before the first one: `look` is None): commit if it is time, leave if told.

        Of several ranks none does so alone.
        """
        leaves = self.preemption.requested is not None
        if self.commits is None or not self.preemption.alone:
            return
        if leaves or (process.overrides.commit_steps is None and self.commits.cadence.due(0)):
            started = time.perf_counter()
            with self.preemption.saving():
                self._commit_inside(position, look)
            self.commits.cadence.took(time.perf_counter() - started)  # what was looked at in vain, too
        if leaves:
            self.preemption.leave()

    def close(self) -> None:
        """The run is over: what is under way becomes durable, and the directory is given back."""
        self.ranks.close()
        self._chain.close()
        if self._refused is not None:
            user_code.warn(str(self._refused))
        if self.commits is not None:
            self._tell_durable(self.commits.close())

    def _wishes(self, position: Position, *, over: bool) -> rank_agreement.Wishes:
        wanted = process.overrides.commit_steps
        told, self._told_everywhere = self._told_everywhere, False
        commits = self.commits if wanted is None else None
        return rank_agreement.Wishes(
            over=over,
            exact=wanted is not None and position.step in wanted,
            at_step=told or (commits is not None and commits.cadence.at(position.step)),
            due=lambda: commits is not None and commits.due(position.step),
            asked=self._asked or self._refused is not None,
            leave=self.preemption.requested is not None,
        )

    def _boundary(self, position: Position) -> None:
        """What every boundary of the outermost loop is for, whether there is a commit or not."""
        self._chain.boundary(position, self._loops.rolled)
        if self.commits is not None and self.commits.under_way:
            with self._raising_together():
                self._tell_durable(self.commits.heard())

    @contextmanager
    def _raising_together(self) -> Iterator[None]:
        """What only rank 0 does: an error waits until all ranks hear of it, at their next asking."""
        try:
            yield
        except SamebitsError as error:
            if self.ranks.world_size == 1:
                raise
            self._refused = error

    def _commit(self, position: Position, *, wait: bool = True) -> None:
        """Commits the boundary at `position`; without `wait` it becomes durable later, or never if a newer one does."""
        self._asked = False
        if self.commits is None:
            return
        assert self._environment is not None
        started = time.perf_counter()
        saved = state.gather(self._objects)
        saved["run_state"] = dict(self._run_state)
        saved["in_hand"] = self.in_hand.state(self._run_state)
        saved["loops"] = self._loops.state()
        saved = self.ranks.complete(saved, self._environment.to_dict())
        facts = CommitMetadata(
            position,
            finished=self._loops.current is None,
            program=self._program,
            environment=self._environment.to_dict(),
            rolling=self._chain.digest,
            value=self._best.take(),
        )
        if not wait and self.ranks.rank:
            self.commits.cadence.took(time.perf_counter() - started)
            return
        durable = [position] if self.ranks.rank else []
        with self.ranks.following() if wait else self._raising_together():
            refused, self._refused = self._refused, None
            if refused is not None:
                raise refused
            if not wait and self.commits.snapshot(saved, facts):
                self.commits.cadence.took(time.perf_counter() - started)
                return
            if self.ranks.rank == 0:
                durable = self.commits.commit(saved, facts, lambda: self._tell("commit_writing", position))
        self._tell_durable(durable)

    def _commit_inside(self, position: Position, look: Look | None) -> None:
        """The newest commit again, with the state between two batches of a validation beside its own."""
        assert self.commits is not None
        assert self._environment is not None
        self._tell_durable(self.commits.settle())
        found = self.commits.store.newest() if look is not None else None
        if look is None or found is None:
            return
        if changed := look():
            if not self._told_restart:
                validation_state.tell_restart(position.name, changed)
            self._told_restart = True
            return
        base, saved = found
        at = Position(**base.position)
        facts = CommitMetadata(
            replace(at, phase="validate", name=position.name, phase_batch=position.phase_batch),
            finished=base.finished,
            program=base.program,
            environment=self._environment.to_dict(),
            rolling=base.rolling,
            value=base.value,
        )
        saved = {**saved, "inside": validation_state.inside(position, self._objects, self._run_state)}
        self.commits.commit(saved, facts, lambda: self._tell("commit_writing", position))

    def _tell_durable(self, positions: Iterable[Position]) -> None:
        for position in positions:
            self._tell("committed", position)

    def _planned(self) -> str:
        """What a signal that came now is going to commit."""
        if self._loops.current is None:
            return "the run is between loops, there is nothing to commit"
        step = self._loops.step + (not self.preemption.waiting)
        return f"committing step {step} as soon as the program is there"

    def _durable(self) -> str:
        """What a restart goes on from."""
        last = None if self.commits is None else self.commits.store.last
        what = "nothing was committed" if last is None else f"committed at step {last.step}"
        return f"{what} in {self._run_dir}"
