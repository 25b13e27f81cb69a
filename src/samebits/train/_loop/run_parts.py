"""The parts of a run that its loops, observers and adapters work with, and what every boundary does."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from samebits._arguments import require_int
from samebits._context import Position, Words, process
from samebits._inspect import user_code
from samebits.distributed import _refusals as refusals
from samebits.distributed._shards import ShardedLoop
from samebits.errors import InvalidArgumentError, RunMismatchError
from samebits.random import _int_keys as int_keys
from samebits.random._process import draw_counts
from samebits.train._aliases import RunState
from samebits.train._boundary_commits import CommitPolicy
from samebits.train._committed_state import LoopEnd, LoopPlace
from samebits.train._completeness.commit_notes import CommitNotes
from samebits.train._completeness.completeness import Completeness, Look
from samebits.train._ddp_buckets import is_wrapped
from samebits.train._environment_check import Environment
from samebits.train._loop.accelerate_loader import prepared
from samebits.train._loop.loop_positions import Loop, Loops
from samebits.train._loop.preemption import Preemption
from samebits.train._object_states import Stateful, check_adapters
from samebits.train._resume import ResumeState


@dataclass(eq=False)
class RunParts:
    """All that a loop may touch of its run."""

    run: Any
    """The `Run`, for observers and the user."""
    run_dir: Path | str | None
    objects: dict[str, Stateful]
    state: RunState
    """The user's plain values and tensors."""
    loops: Loops
    saving: CommitPolicy
    resuming: ResumeState
    completeness: Completeness
    notes: CommitNotes
    cures: str = ""
    """The advice of an adapter, whose user has no `Run` to type, for a value that is not saved."""
    key: Words = (0, 0)
    environment: Environment | None = None
    shards: int | None = None
    """The logical shards of each batch, of a run that has such."""
    replays: bool = False
    """True if the run has a replay check."""
    sharded: ShardedLoop | None = None
    stop_requested: bool = False
    """True if the loop under way should end."""
    entered: bool = False
    over: bool = False
    """True once the `with` block has ended."""

    def __post_init__(self) -> None:
        self.preemption: Preemption = self.saving.preemption

    def share(self, shards: int) -> None:
        """Makes the run one with logical shards, whose state is equal on all ranks."""
        assert self.environment is not None
        self.shards = self.saving.ranks.shards = shards
        self.environment.share(shards)
        process.rank_key = ()

    def check_shards(self, loader: Any, shards: Any, call: str) -> None:
        """Raises, before anything is changed, where a loop cannot have `shards`; None: it has none."""
        size, where = self.saving.ranks.world_size, f"{call}(shards={shards})"
        if shards is not None:
            require_int(call, shards=shards)
        if self.loops.innermost is not None:
            if shards is not None:
                raise InvalidArgumentError(f"{where}: only an outermost loop has shards, none in its body.")
            return
        if self.shards != shards and (self.shards is not None or self.run.resumed or self.loops.done):
            raise RunMismatchError(
                f"{where}: the run in {self.run_dir} has shards={self.shards}, and the bits follow their "
                f"number. Write shards={self.shards} in each of its loops, or use another run directory."
            )
        if shards is None:
            return
        started, why = os.environ.get("WORLD_SIZE", "1"), ""
        if size == 1 and started != "1":
            why = (
                f"torchrun has started {started} processes, and torch.distributed is not initialized. Call "
                'torch.distributed.init_process_group("gloo") before the Run'
            )
        elif size > shards:
            why = (
                f"these are {size} processes, and each needs a shard. Start at most {shards} (torchrun "
                f"--nproc-per-node {shards}), or begin a new run with more shards"
            )
        elif prepared(loader) is not None:
            why = "Accelerate has prepared the loader, to share batches out in its way. Do not prepare it"
        elif self.replays:
            why = "Run(replay_check=...) computes a step twice, and shards do not. Leave it out"
        if why:
            raise InvalidArgumentError(f"{where}: {why}.")
        refusals.check_loader(loader, shards, call)
        refusals.check_modules(self.objects, is_wrapped(self.objects), where)
        if self.shards is None:
            self.share(shards)

    def close_shards(self) -> None:
        """Ends the loop with shards that is under way, if any: removes its hooks."""
        if self.sharded is not None:
            self.sharded.close()
        self.sharded = None

    def check_open(self, call: str) -> None:
        """Raises `InvalidArgumentError` outside the `with` block."""
        if not self.entered:
            raise InvalidArgumentError(f"{call}: enter the run first: `with samebits.Run(...) as run:`.")
        if self.over:
            raise InvalidArgumentError(
                f"{call}: the `with` block of the run in {self.run_dir} has ended, and nothing more would be "
                "saved. Put it inside the block."
            )

    def begin_body(self, position: Position, key: Words, *path: int | str) -> None:
        """Sets the generators, and the position, for a body of the user's."""
        draw_counts.begin(int_keys.fold(key, *path, *process.rank_key))
        process.position = position

    def is_stopped(self, step: int) -> bool:
        """Returns True if the loop ends before this step, or the process does (`samebits verify --steps`)."""
        limit = process.overrides.stop_after_steps
        return self.stop_requested or (limit is not None and step >= limit)

    def begin_outermost(self, loop: Loop, call: str) -> LoopPlace | None:
        """Begins an outermost loop; returns its place in the commit from which the run resumes, if in it."""
        loops = self.loops
        check_adapters(self.objects)
        self.saving.note_objects(self.resuming.made)
        if loops.current is not None:  # the loop before was left by `break`
            loops.step += 1
            loops.finish(stopped=True)
            loops.ended_with = None
            self.end_loop(loop.name)
        loops.under_way.append(loop)
        saved, loops.saved = loops.saved, None
        if saved is None:
            return None
        if (saved.name, saved.by_epoch) != (loop.name, loop.by_epoch):
            made = " of run.epochs" if saved.by_epoch else ""
            raise RunMismatchError(
                f"{call}(name={loop.name!r}): the commit in {self.run_dir} is in the loop "
                f"{saved.name!r}{made}. Use another run directory, or the program that made it."
            )
        return saved

    def resume_finished(self, loop: Loop, end: LoopEnd, epochs: int, call: str) -> bool:
        """Restores a run whose commit has the loop's end; returns True if it is over, or begins it again."""
        loops = self.loops
        self.saving.note_objects(self.resuming.made)
        newest = next(reversed(loops.done)) == loop.name
        last = loops.saved is None and newest
        over = end.stopped or end.epoch >= epochs
        if not over and not last:
            raise RunMismatchError(
                f"{call}(name={loop.name!r}, epochs={epochs}): in {self.run_dir} this loop ended after "
                f"{end.epoch} epochs, and others followed. Ask for as many, or use another run directory."
            )
        if newest and not last:
            self.resuming.enter(loops.ended_with)  # the code behind it runs again
        if last:
            self.resuming.restore_at_loop()  # changes before it (a fresh head, say) were part of the state
        if not end.stopped:
            self.warn_beyond(loop, epochs, end.epoch, 0)
        if not over:
            del loops.done[loop.name]
            loops.under_way.append(loop)
            loop.epoch = end.epoch
        return over

    def warn_beyond(self, loop: Loop, epochs: int, epoch: int, batch_index: int) -> None:
        """Warns of a run that has more epochs than the program asks for."""
        if (epoch, batch_index) > (epochs, 0):
            user_code.warn(
                f"Run.steps(name={loop.name!r}, epochs={epochs}): the run in {self.run_dir} is in epoch "
                f"{epoch} already (batch {batch_index}), and stays there: these are not the weights of "
                f"{epochs} epochs. Use another run directory for them."
            )

    def finish_outermost(self, loop: Loop, position: Position, look: Look) -> None:
        """Ends the outermost loop at its last boundary, and commits it."""
        loops = self.loops
        loops.finish(stopped=self.stop_requested)
        self.notes.end(look, loop.name)
        note = partial(self.notes.take, look, by_epoch=loop.by_epoch)
        self.saving.on_boundary(position, over=True, outermost=True, note=note)
        loops.ended_with = self.saving.entry_state()
        self.leave_loop(loop.name)

    def leave_loop(self, loop: str) -> None:
        """Leaves a loop without a further step for the code after it, where a signal ends the program."""
        self.end_loop(loop)
        self.preemption.idle = True

    def end_loop(self, loop: str) -> None:
        """Ends a loop: the code after it draws from the same generators, even if the loop was over before."""
        draw_counts.begin(int_keys.fold(self.key, loop, "end"))
        self.stop_requested = False
