"""The saved state and the times of commits: between two iterations, or two batches of a validation."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import xxhash

from samebits._arguments import is_int, require
from samebits._context import Position, process
from samebits._dtensors import is_dtensor
from samebits._inspect import user_code
from samebits.checkpoint._commit_parts import RanksReader
from samebits.checkpoint._manifest import Manifest
from samebits.distributed._fsdp2 import fsdp_modules, reshard
from samebits.errors import SamebitsError
from samebits.train import _object_checks as object_checks
from samebits.train import _resume as resume
from samebits.train._aliases import Aliases, RunState
from samebits.train._async_commits import Commits
from samebits.train._committed_state import CommittedState, ValidationState, gather, layouts
from samebits.train._completeness.commit_notes import CommitNotes
from samebits.train._environment_check import Environment, RunSeed
from samebits.train._loop import entry_state
from samebits.train._loop.loop_positions import Loops
from samebits.train._loop.preemption import Preemption
from samebits.train._memory_check import check_memory
from samebits.train._object_states import Stateful, parameters
from samebits.train._rank_agreement import Decision, Opened, Ranks, SingleProcess, check_of_shards
from samebits.train._resume import FindUnsaved
from samebits.train._run_arguments import check_number

_POSITION = struct.Struct("<4Q")
"""Of a rolling digest: step, epoch, batch, and the digest of the batches."""
Notify = Callable[[str, Position], None]
"""Notifies the observers of the run of an event, and of its position."""
TakeNote = Callable[[Position, CommittedState], None]
"""Takes the note of a commit at a position, whose state it gets."""


class BestCommits:
    """The best commits, by `Run(keep_best=..., best=...)`.

    Raises InvalidArgumentError for a negative number, or a name with keep_best=0.
    """

    def __init__(self, keep: int, name: str | None) -> None:
        require(is_int(keep, 0), "Run", "a number of commits, 0 for none", keep_best=keep)
        what = 'the name of a value in run.log: best="val_loss". A value goes to run.best(value)'
        require(name is None or isinstance(name, str), "Run", what, best=name)
        require(name is None or keep > 0, "Run", "say how many commits to keep: keep_best=1", best=name)
        self.rises = name is not None and name.startswith("max:")
        self.name = name.removeprefix("max:") if name is not None else None
        self.value: float | None = None
        """The value of the state at the next boundary."""
        self.names: set[str] = set()
        """All names that were logged."""

    def select(self, values: Mapping[str, Any]) -> float | None:
        """Returns the value among `values` that decides, smaller is better; None without its name."""
        self.names.update(values)
        if self.name is None or self.name not in values:
            return None
        check_number(values[self.name], f"run.log({self.name}")
        return -float(values[self.name]) if self.rises else float(values[self.name])

    @property
    def never_logged(self) -> bool:
        """True if other names were logged, and not the one that decides."""
        return self.name is not None and bool(self.names) and self.name not in self.names

    def warn(self, call: str) -> None:
        """Warns at the end of the run that the name was never logged."""
        user_code.warn(
            f"{call}(best={self.name!r}): no value of this name was logged, so that no commit was kept for "
            f"it. There were {', '.join(sorted(self.names))}."
        )

    def pop(self) -> float | None:
        """Returns the value of the state at this boundary, and resets it."""
        value, self.value = self.value, None
        return value if value is not None and math.isfinite(value) else None


class RollingDigest:
    """A digest of the run so far: its positions, losses, and batches if the loader keeps their digest.

    Every commit holds it, so that two runs are compared by a number: equal ones mean equal runs up to there.
    """

    def __init__(self) -> None:
        self._rolled = 0
        self._at: tuple[str, int] | None = None
        self._losses: list[float] = []

    @property
    def digest(self) -> str:
        """The digest of the run up to the last boundary."""
        return f"xxh3-64:{self._rolled:016x}"

    def loss(self, value: Any) -> None:
        """Adds a loss of the step under way. One on a GPU is left out: reading it would wait for it."""
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            self._losses.append(float(value))

    def boundary(self, position: Position, batches: int) -> None:
        """Ends the step before `position`; `batches` is its loader's own rolling digest."""
        if self._at == (position.loop, position.step):  # where the run resumed, or after another loop
            return
        self._at = position.loop, position.step
        losses, self._losses = self._losses, []
        data = _POSITION.pack(position.step, position.epoch, position.batch_index, batches)
        if losses:
            data += struct.pack(f"<{len(losses)}d", *losses)
        self._rolled = xxhash.xxh3_64_intdigest(position.loop.encode() + data, self._rolled)

    def resume(self, digest: str | None, loop: str, step: int) -> None:
        self._rolled = 0 if digest is None else int(digest.rpartition(":")[2], 16)
        self._at = loop, step


class CommitPolicy:
    """Gathers a run's state at boundaries and commits it, on all ranks alike; ends the run after a signal."""

    def __init__(
        self,
        run_dir: Path | str | None,
        commits: Commits | None,
        best: BestCommits,
        objects: Mapping[str, Stateful],
        run_state: RunState,
        loops: Loops,
        grace: float,
        notify: Notify,
        notes: CommitNotes,
    ) -> None:
        self.commits = commits
        self.ranks: Ranks = SingleProcess()
        self.preemption = Preemption(grace, self._next_commit_text, self._durable_commit_text)
        self._run_dir, self._best, self._notify, self._notes = run_dir, best, notify, notes
        self._objects, self._run_state, self._loops = objects, run_state, loops
        self._aliases, self._forms = Aliases(), object_checks.GivenForms()
        self._rolling = RollingDigest()
        self._program: dict[str, Any] = {}
        self._environment: Environment | None = None
        self._boundaries = 0
        """Those that this process has come to."""
        self._requested = self._warned_of_restart = self._best_everywhere = False
        self._deferred_error: SamebitsError | None = None
        """The error of an asynchronous commit: on rank 0, which raises it where all ranks do."""

    def open(self, where: str) -> Opened:
        """Returns the newest commit with the state of this rank, of which it reads what the program has."""
        reader = None
        if self.ranks.group is not None and self.commits is not None and self._sharded:

            def check(manifest: Manifest, state: Any) -> None:
                check_of_shards(manifest, str(self._run_dir))
                object_checks.check_content(state, self._objects)

            store = self.commits.store
            reader = RanksReader(self.ranks.group, store, partial(layouts, self._objects), check)
        return self.ranks.open(partial(self._find, reader), where, reader)

    def _find(self, reader: RanksReader | None) -> Opened:
        """Opens the run directory and reads the newest commit; on rank 0 alone."""
        if self.commits is None:
            return None
        store = self.commits.store
        store.open()
        if reader is not None:
            reader.check_seen()
            found = store.newest(read=reader.read)
        else:
            check = partial(object_checks.check_content, objects=self._objects)
            found = store.newest(check, partial(layouts, self._objects))
        for folder, reason in store.skipped:
            user_code.warn(f"skipped the damaged commit {folder.name}: {reason}")
        if found is not None:
            object_checks.check_kind(*found, str(self._run_dir))
        return found

    def begin(self, origin: RunSeed, environment: Environment, found: Manifest | None) -> None:
        self._program, self._environment = asdict(origin), environment
        if self.commits is not None:
            self._forms.note_given(self._objects)
        if found is not None:
            self._rolling.resume(found.rolling, found.position["loop"], found.step)

    def note_objects(self, made: Mapping[int, Any]) -> None:
        """Notes what the program holds before its loop, but the objects that a resume has `made`."""
        self._aliases.note(self._objects, self._run_state, made)
        if self.commits is not None:
            self._forms.note_begun(self._objects)

    def loss(self, value: Any) -> None:
        """Adds a loss of the step under way."""
        self._rolling.loss(value)

    def best(self, value: float, *, everywhere: bool) -> None:
        """Sets the value of the state at the next boundary; a state among the best is committed.

        `everywhere`: all ranks call this at this step. Else the commit waits until they exchange requests.
        """
        self._best.value, self._best_everywhere = value, everywhere
        if self.commits is None or self.ranks.rank:  # only rank 0 knows the kept commits
            return
        if self.commits.store.would_stay(value):
            self._requested = True

    def check_best(self) -> None:
        """Warns if the name that decides about the best commits was never logged, before a resume neither."""
        if self.commits is None or not self._best.never_logged:
            return
        if all(value is None for value in self.commits.store.values().values()):
            self._best.warn("Run")

    def entry_state(self) -> entry_state.EntryState | None:
        """Returns the state by now, for the commits until the loop or the epoch that begins has ended."""
        return None if self.commits is None else entry_state.encoded(self._state().to_dict())

    def request_commit(self) -> None:
        """Requests a commit at the next boundary: at once, after a loop that has ended."""
        self._requested = True
        if process.position is None and self._loops.current is None and self._loops.done:
            with self.preemption.saving():
                self._commit(self._loops.position())

    def on_boundary(
        self, position: Position, *, over: bool, outermost: bool, note: TakeNote = lambda *_: None
    ) -> None:
        """Commits between two iterations if a commit is due, and ends the run after a signal."""
        if not outermost:
            if self.preemption.requested and self.preemption.single_process:
                self.preemption.leave()
            return
        self._boundary(position)
        decision = self._decide(position, over=over)
        if decision > Decision.CONTINUE:
            with self.preemption.saving():
                self._commit(position, note, wait=decision > Decision.SNAPSHOT)
        if decision is Decision.LEAVE:  # whichever rank got the signal
            self.preemption.leave()

    def on_stop(self, position: Position) -> None:
        """Commits after the outermost loop was stopped, and left by `break`."""
        with self.preemption.saving():
            self._boundary(position)
            self._commit(position)

    def on_interrupt(self, position: Position, *, outermost: bool, note: TakeNote) -> NoReturn:
        """Commits the boundary before `position`, where the run waited when a signal came; ends the run."""
        if outermost:
            with self.preemption.saving():
                self._commit(position, note)
        self.preemption.leave()

    def on_validation_batch(self, position: Position, find_unsaved: FindUnsaved | None) -> None:
        """Commits, if due, between two batches of a validation; ends the run after a signal.

        `find_unsaved` is None before the first batch. Several ranks do nothing: none may decide alone.
        """
        leaves = self.preemption.requested is not None
        if self.ranks.shards is not None:  # the sums of one rank are none of a commit
            return
        if self.commits is None or not self.preemption.single_process:
            return
        if leaves or (process.overrides.commit_steps is None and self.commits.cadence.due(0)):
            started = time.perf_counter()
            with self.preemption.saving():
                self._commit_inside(position, find_unsaved)
            # the time of a check without a commit, too
            self.commits.cadence.record_commit(time.perf_counter() - started)
        if leaves:
            self.preemption.leave()

    def close(self) -> None:
        """Waits for the commits under way and releases the directory."""
        self.ranks.close()
        if self._deferred_error is not None:
            user_code.warn(str(self._deferred_error))
        if self.commits is not None:
            self._notify_durable(self.commits.close())

    def _decide(self, position: Position, *, over: bool) -> Decision:
        wanted = process.overrides.commit_steps
        commits = self.commits if wanted is None else None
        exact = wanted is not None and position.step in wanted
        everywhere, self._best_everywhere = self._best_everywhere, False
        mine = Decision.CONTINUE
        if self.preemption.requested is not None:
            mine = Decision.LEAVE
        elif over or exact or self._requested or self._deferred_error is not None:
            mine = Decision.COMMIT
        elif commits is not None and commits.due(position.step):
            mine = Decision.SNAPSHOT
        at_step = commits is not None and commits.cadence.requires(position.step)
        return self.ranks.decide(position, mine, over=over, together=exact or everywhere or at_step)

    def _boundary(self, position: Position) -> None:
        """Does the work of every boundary of the outermost loop, whether there is a commit or not."""
        self._rolling.boundary(position, self._loops.rolled)
        self._boundaries += 1
        if self._boundaries == 2:
            self._reserve()
        if self.commits is not None and self.commits.under_way:
            with self._deferring_errors():
                self._notify_durable(self.commits.poll())

    def _reserve(self) -> None:
        """Prepares the memory of the first snapshot, after a step: before it, optimizers have no state."""
        commits = self.commits
        alone = self.ranks.world_size == 1 and process.overrides.commit_steps is None
        if alone and commits is not None and commits.cadence.by_itself:
            commits.reserve(replace(gather(self._objects), loops=self._loops.state()).to_dict())

    @contextmanager
    def _deferring_errors(self) -> Iterator[None]:
        """Keeps an error of rank 0 until all ranks learn of it, at their next exchange."""
        try:
            yield
        except SamebitsError as error:
            if self.ranks.world_size == 1:
                raise
            self._deferred_error = error

    @property
    def _sharded(self) -> bool:
        """True if parameters are DTensors: each rank has some rows."""
        reshard(fsdp_modules(self._objects))  # a forward without a backward has left some whole
        return any(map(is_dtensor, parameters(self._objects).values()))

    def _state(self) -> CommittedState:
        reshard(fsdp_modules(self._objects))
        self._forms.check_groups(self._objects)
        saved = gather(self._objects, self._run_state)
        saved.aliases = self._aliases.state(saved, self._objects)
        return saved

    def _check(self, saved: CommittedState) -> None:
        check_memory(saved, self._objects, self._aliases)
        self._forms.check(saved, self._objects)

    def _commit(self, position: Position, note: TakeNote = lambda *_: None, *, wait: bool = True) -> None:
        """Commits the boundary at `position`; without `wait` it, or a newer one, becomes durable later."""
        self._requested = False
        if self.commits is None:
            return
        assert self._environment is not None
        started = time.perf_counter()
        saved = self._state()
        check = partial(self._check, saved)
        saved.loops = self._loops.state()
        tree = self.ranks.gather_state(saved.to_dict(), self._environment.to_dict())
        if self.ranks.rank == 0:
            note(position, saved)
        facts = {
            "finished": self._loops.current is None,
            "program": self._program,
            "environment": self._environment.to_dict(),
            "rolling": self._rolling.digest,
            "value": self._best.pop(),
            "note": self._notes.text,
        }
        writing = partial(self._notify, "commit_writing", position)
        if self.ranks.group is not None and self._sharded:
            self._notify_durable(self.commits.commit(tree, position, facts, writing, check, self.ranks.group))
            return
        if not wait and self.ranks.rank:
            self.commits.cadence.record_commit(time.perf_counter() - started)
            return
        durable = [position] if self.ranks.rank else []
        with self.ranks.rank_zero_first() if wait else self._deferring_errors():
            deferred_error, self._deferred_error = self._deferred_error, None
            if deferred_error is not None:
                raise deferred_error
            if not wait and self.commits.snapshot(tree, position, facts, check):
                self.commits.cadence.record_commit(time.perf_counter() - started)
                return
            if self.ranks.rank == 0:
                durable = self.commits.commit(tree, position, facts, writing, check)
        self._notify_durable(durable)

    def _commit_inside(self, position: Position, find_unsaved: FindUnsaved | None) -> None:
        """Commits the newest commit again, with the state between two batches of a validation added."""
        assert self.commits is not None
        assert self._environment is not None
        self._notify_durable(self.commits.wait())
        found = self.commits.store.newest() if find_unsaved is not None else None
        if find_unsaved is None or found is None:
            return
        if changed := find_unsaved():
            if not self._warned_of_restart:
                resume.print_restart(position.name, changed)
            self._warned_of_restart = True
            return
        base, tree = found
        at = Position(**base.position)._replace(
            phase="validate", name=position.name, phase_batch=position.phase_batch
        )
        facts = {one: getattr(base, one) for one in ("finished", "program", "rolling", "value", "note")}
        facts["environment"] = self._environment.to_dict()
        state = gather(self._objects, self._run_state)
        saved = replace(CommittedState.of(tree), inside=ValidationState.at(position, state))
        check = partial(check_memory, state, self._objects, self._aliases)
        self.commits.commit(
            saved.to_dict(), at, facts, lambda: self._notify("commit_writing", position), check
        )

    def _notify_durable(self, positions: Iterable[Position]) -> None:
        for position in positions:
            self._notify("committed", position)

    def _next_commit_text(self) -> str:
        """Returns, in words, the commit that a signal would make now."""
        if self._loops.current is None:
            return "no step is under way, so there is nothing to save"
        if self.preemption.waiting:
            return f"saving now (step {self._loops.step})"
        return f"saving after this step ({self._loops.step + 1})"

    def _durable_commit_text(self) -> str:
        """Returns, in words, the commit that a restart resumes from."""
        step = -1 if self.commits is None else self.commits.store.durable_step
        what = "nothing was committed" if step < 0 else f"committed at step {step}"
        return f"{what} in {self._run_dir}"
