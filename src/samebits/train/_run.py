"""`Run`: makes your own training loop resumable to the same bits, wherever it is killed."""

from __future__ import annotations

import inspect
import math
import os
import sys
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from samebits._arguments import require_int
from samebits._context import Words, notify, process, shown_run_dir
from samebits._inspect.user_call import explain_wrong_calls
from samebits.checkpoint._store import resolve
from samebits.data._resumable import Resumable
from samebits.errors import DuplicateNameError, IncompleteStateError, InvalidArgumentError, NonFiniteLossError
from samebits.nn._layer_keys import name_layers
from samebits.random import _int_keys as int_keys
from samebits.state._attributes import Attributes
from samebits.state._known_classes import parts_with_state
from samebits.train import _environment_check as environment_check
from samebits.train import _hyperparameters as hyperparameters
from samebits.train import _rank_agreement as rank_agreement
from samebits.train._aliases import RunState
from samebits.train._async_commits import Commits
from samebits.train._boundary_commits import BestCommits, CommitPolicy
from samebits.train._cadence import Cadence, Save
from samebits.train._completeness.commit_notes import CommitNotes
from samebits.train._completeness.completeness import Completeness
from samebits.train._environment_check import Environment, check_names
from samebits.train._loop.batch_source import check_loader
from samebits.train._loop.epochs import Epochs
from samebits.train._loop.loop_positions import Loops, check_steps
from samebits.train._loop.run_parts import RunParts
from samebits.train._loop.steps import LoopSteps, Steps
from samebits.train._loop.validation import Validation
from samebits.train._object_checks import check_compiled, check_not_lazy, check_not_sharded, is_like
from samebits.train._object_states import Stateful, note_objects
from samebits.train._replay_check import ReplayCheck
from samebits.train._resume import ResumeState
from samebits.train._run_arguments import (
    check_number,
    check_options,
    explain_add,
    explain_epochs,
    explain_restore,
    explain_run,
    explain_steps,
    stateful,
)


class Run:
    """A training run in a directory: it commits between steps, and resumes to the same bits.

    ```python
    with samebits.Run("runs/digits", model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=10):
            ...
            if step.ends_epoch:
                run.state.best = min(run.state.get("best", 1e9), validate(model))
    ```

    Everything that changes between two steps belongs to the run: objects with `state_dict` and
    `load_state_dict` are passed by name (`model=model`, or `run.add`), plain values and tensors are in
    `run.state`. The position, gradients that are alive, train/eval modes and `requires_grad` are saved
    without being named. Before each step the global generators of torch, NumPy and Python are filled from the
    position, so that the draws of the loop's body are the same after a resume.

    How the `with` block ends: an exception or `break` commits nothing (a restart replays from the last
    commit); a loop that is exhausted, or ended by `run.stop()`, commits; SIGTERM commits at the next boundary
    and exits with code 75. A finished run yields no steps and restores its final state, so that the code
    after the loop runs again.

    Args:
        run_dir: folder of this run alone; made when missing. Or a URL that fsspec opens ("s3://bucket/run"):
            commits are made below `$SAMEBITS_CACHE_DIR` and uploaded. None: nothing is saved (no resume).
        save: when to commit, besides ends of loops and exits by a signal; the bits do not depend on it. A
            share of the time ("3%", at most once a second), a number of steps, seconds ("30s"), or
            "explicit": by `run.commit()`. Except for the last, a process of its own makes the commits durable
            while training continues: of several within 50 ms the newest, and always the last before a kill.
        keep: number of newest commits to keep.
        keep_best: number of further commits to keep, those with the smallest logged values.
        best: name of the value in `run.log` that selects the best commits, smaller is better; "max:name":
            larger is. Without it, `run.best(value)` sets the value.
        allow_changes: names of entries that may differ from the commit's environment ("torch", "cpu", "gpu",
            "flags", ...; the error lists them); equal bits are then not promised. "threads": the number is
            not restored. "script": no warning where the script has changed. "hyperparameters": of optimizers
            and schedulers; the commit's are used.
        check_loss: `run.log(loss=...)` raises when the loss is not finite.
        grace: seconds after SIGTERM, SIGUSR1 or the first Ctrl-C within which the process exits with code 75.
            Less than the scheduler gives.
        check_complete: check, in the first steps and now and then, that every value that the loop carries
            from step to step is in the commit: locals, globals, attributes of reachable objects.
        ignore: paths to `ignore`, from the start.
        replay_check: compute the forward and backward of the run's modules twice in this share of the steps
            ("1%", or a number of steps from one to the next), and compare bits before the optimizer sees the
            gradients: for machines that compute wrongly, without a word. It costs about that share of time.
        stateful: the objects to save, by name.

    Raises:
        InvalidArgumentError: an object has no state_dict or no load_state_dict.
        RunDirectoryError: the folder cannot be used (not writable, used by a live process, not a run's).
        RemoteStorageError: the storage of a URL failed.
        RunMismatchError: the folder is of a run with other objects, hyperparameters, seed or environment.
        CorruptCommitError: there are commits and none of them is intact.
        UnseededError: op determinism is on and no seed is set.
        ReplayMismatchError: in the loop: a step that was computed twice had other bits the second time.
        IncompleteStateError: in the loop: something changes from step to step and is in no commit.
        ResumeMismatchError: at the loop's begin: the resumed program has another value than at the commit.

    Example:
        >>> def train(run_dir, epochs):
        ...     with samebits.Run(run_dir) as run:
        ...         for step, x in run.steps([1, 2, 3], epochs=epochs):
        ...             run.state.total = run.state.get("total", 0) + x * torch.rand(2)
        ...     return run.state.total
        >>> samebits.set_random_seed(1)
        >>> torch.equal(train("a", 2), train("b", 1)), torch.equal(train("a", 2), train("b", 2))
        (False, True)
    """

    run_dir: Path | str | None
    """The folder (or URL) of the run's commits; None without one."""
    resumed: bool
    """True if a commit was found at `with`: the run continues from it."""

    @explain_wrong_calls(explain_run)
    def __init__(
        self,
        run_dir: str | os.PathLike[str] | None,
        *,
        save: Save = "3%",
        keep: int = 2,
        keep_best: int = 0,
        best: str | None = None,
        allow_changes: Collection[str] = (),
        check_loss: bool = True,
        grace: float = 20.0,
        check_complete: bool = True,
        ignore: Sequence[str] = (),
        replay_check: str | int | None = None,
        **stateful: Any,
    ) -> None:
        chosen = BestCommits(keep_best, best)
        check_options(keep, grace, ignore)
        cadence = Cadence(save)
        self.objects: dict[str, Stateful] = {}
        self.resumed = False
        self.run_dir = None if run_dir is None else resolve(run_dir, "Run: run_dir")
        commits = None if self.run_dir is None else Commits(self.run_dir, cadence, keep, keep_best)
        self._allowed = check_names(allow_changes)
        self._check_loss = check_loss
        self._best = chosen
        state, loops, where = RunState(), Loops(), shown_run_dir(self.run_dir)
        notes, completeness = CommitNotes(where), Completeness(enabled=check_complete and run_dir is not None)
        resuming = ResumeState(where, self.objects, state, loops)
        saving = CommitPolicy(
            self.run_dir, commits, chosen, self.objects, state, loops, grace,
            lambda event, position: notify(event, self, position), notes,
        )  # fmt: skip
        parts = state, loops, saving, resuming, completeness, notes
        self.parts = RunParts(self, self.run_dir, self.objects, *parts)
        for path in ignore:
            self.ignore(path)
        self._environment: Environment | None = None
        self._keys_before: tuple[Words | None, tuple[str | int, ...]] = (None, ())
        self._replays = None if replay_check is None else ReplayCheck(self, replay_check)
        self.parts.replays = self._replays is not None
        for name, thing in stateful.items():
            self._add(name, thing, _OPTIONS)

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in _ATTRIBUTES:
            raise InvalidArgumentError(
                f"run.{name} = ...: a Run has no such attribute, and a commit would not hold it. Values of "
                f"the program are kept in run.state: run.state.{name} = ..."
            )
        object.__setattr__(self, name, value)

    @explain_wrong_calls(explain_add)
    def add(self, name: str, thing: Any, *, complete: bool = False) -> None:
        """Makes `thing` part of the run's commits under `name`.

        It has `state_dict` and `load_state_dict`, or is of a class that `samebits.state.adapter_for` knows
        (an environment of gymnasium, a list, a generator). Of an object that the loop makes anew, such as the
        meter of an epoch, `samebits.state.attributes` is added again by the same name; from here on the new
        one is saved. So is a module or an optimizer that the body of each epoch makes and adds.

        Args:
            name: of the object, in commits and messages.
            thing: the object.
            complete: its state_dict holds all of its state: the check for lost state does not look into it.
        """
        self._add(name, thing, ())
        if complete:
            self.parts.completeness.trusted.add(name)

    def _add(self, name: str, thing: Any, options: tuple[str, ...]) -> None:
        saved = stateful(name, thing, options)
        before = self.objects.get(name)
        if saved is before:  # the line is in a loop, or in a function that an epoch calls
            return
        if isinstance(before, Attributes) and isinstance(saved, Attributes) and before.is_like(saved):
            self.objects[name] = saved  # its object was made anew, as the meter of an epoch is
            note_objects(self.objects)
            return
        loop = self.parts.loops.current
        epoch = loop.epoch if loop is not None and loop.by_epoch else None
        added_in = self.parts.loops.added_in.get(name)
        anew = None not in (epoch, added_in) and epoch != added_in and is_like(before, saved)
        if name in self.objects and not anew:
            raise DuplicateNameError(
                f"Run.add({name!r}): this run already has an object of that name. Of several loops give each "
                f'a name of its own: run.add(f"{name}{{number}}", ...). Only a module or an optimizer of one '
                "shape that each epoch of run.epochs makes may have one name: add it in the epoch's body, "
                "and not before the loop."
            )
        check_compiled(name, thing)
        if self.run_dir is not None:
            check_not_lazy(name, thing)
            if self._environment is not None:
                check_not_sharded(name, thing)
        self.parts.resuming.check_contains(name)
        if self._environment is not None and epoch is None:  # those of each epoch may be others
            self._environment.hyperparameters.check_added(
                name, thing, shown_run_dir(self.run_dir), self._allowed
            )
        self.objects[name] = saved
        self.parts.loops.added_in[name] = epoch
        if isinstance(saved, Resumable):
            saved._is_state = True
        note_objects(self.objects)
        if isinstance(saved, torch.nn.Module):
            name_layers(saved, name)
        for part, inner in parts_with_state(thing).items():
            self._add(f"{name}_{part}", inner, ())

    def ignore(self, path: str) -> None:
        """Ignores the value at `path` ("losses", "ema.counter") and below: a resume may lose it, as a log.

        The path is the one that `IncompleteStateError` names. The run's end warns of paths without a match.
        """
        self.parts.completeness.ignore(path)

    def __enter__(self) -> Self:
        parts = self.parts
        if parts.entered:
            raise InvalidArgumentError("Run: a run is entered once. Make a new Run for another `with` block.")
        _check_thread()
        parts.entered = True
        self._keys_before = process.run_key, process.rank_key
        parts.saving.ranks = rank_agreement.join()
        parts.preemption.single_process, parts.preemption.prints = self.world_size == 1, self.rank == 0
        try:
            if self.run_dir is not None:
                parts.preemption.install()
            self._open()
        except BaseException:
            parts.preemption.uninstall()
            parts.saving.close()
            raise
        process.open_runs[id(self)] = threading.current_thread()
        if self.run_dir is not None:
            parts.resuming.groups.open()
        if self._replays is not None:
            process.observers.append(self._replays)
        notify("run_opened", self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        parts, clean = self.parts, kind is None
        parts.over = True
        parts.preemption.idle = False
        try:
            # run.stop() and then break
            if clean and parts.stop_requested and parts.loops.current is not None:
                parts.saving.on_stop(parts.loops.stop())
        finally:
            hyperparameters.note_left(self.objects)
            if self._replays is not None:
                self._replays.close()
                process.observers.remove(self._replays)
            for saved in self.objects.values():
                if isinstance(saved, Resumable):
                    saved._is_state = False
            process.open_runs.pop(id(self), None)
            parts.resuming.groups.close()
            parts.close_shards()
            process.position = None
            process.run_key, process.rank_key = self._keys_before
            parts.saving.close()
            commits = parts.saving.commits
            committed = commits is not None and commits.store.last is not None
            if committed and isinstance(error, IncompleteStateError):
                error.add_note(
                    f"The commits in {shown_run_dir(self.run_dir)} lack this state: give the changed "
                    "program another run directory."
                )
            parts.preemption.uninstall()
            notify("run_closed", self, finished=clean)
        if clean:
            parts.completeness.close()
            parts.saving.check_best()
        if parts.preemption.requested is not None and (error is None or isinstance(error, Exception)):
            if error is not None:  # perhaps because another rank got the signal, too
                print(f"samebits: after the signal: {type(error).__name__}: {error}", file=sys.stderr)
            parts.preemption.leave()

    @explain_wrong_calls(explain_steps)
    def steps(
        self,
        loader: Iterable[Any],
        epochs: int = 1,
        *,
        name: str = "train",
        steps_per_epoch: int | None = None,
        shards: int | None = None,
    ) -> Steps:
        """Returns the steps of one loop: `(step, batch)`, like `enumerate(loader)` over `epochs` epochs.

        Args:
            loader: a `samebits.data.DataLoader`, or any iterable that starts anew at each `iter()`.
            epochs: how many times it is iterated in all (not: how many more).
            name: of the loop; two loops of one run need two names.
            steps_per_epoch: batches of an epoch, for a loader that never ends, or to validate more often:
                each epoch continues in the loader where the last one ended. None: one pass over the loader.
            shards: logical shards of each batch, for the same bits on any number of processes up to it. In
            the
                place of the batch comes a `Shards`: the batches of this process's shards.
        """
        self.parts.check_open("Run.steps")
        require_int("Run.steps", epochs=epochs)
        check_loader(loader)
        check_steps(loader, steps_per_epoch, "Run.steps(steps_per_epoch")
        self.parts.check_shards(loader, shards, "Run.steps")
        whole = self.parts.loops.name(name, "Run.steps")
        if process.position is None:
            self.parts.saving.ranks.begin(self.objects, loader, epochs=epochs, name=whole)
        self.parts.loops.asked[whole] = epochs
        return LoopSteps(self.parts, loader, epochs, whole, steps_per_epoch, shards)

    @explain_wrong_calls(explain_epochs)
    def epochs(self, epochs: int, *, name: str = "train") -> Epochs:
        """Returns the epochs of a loop, for programs with one call per epoch: `for epoch in run.epochs(3)`.

        ```python
        for epoch in run.epochs(3):
            for step, (x, y) in epoch.steps(loader):
                ...
            run.state.best = min(run.state.get("best", 1e9), validate(model))
        ```

        Each is its number, an int that has `steps(loader)`; the batches and the draws in the body of a step
        are those of `run.steps(loader, epochs=3)`. A commit falls between two steps of an epoch. Killed after
        the last step of an epoch, the run resumes from the commit before, and ends with equal bits. A resumed
        run enters the body of its epoch again: the code before `epoch.steps` runs, and then the state is
        restored. So what that code computes for the rest of the epoch must follow from the number of the
        epoch, or be in `run.state`.

        Args:
            epochs: how many in all (not: how many more).
            name: of the loop; two loops of one run need two names.

        Raises:
            InvalidArgumentError: inside the body of another loop, or `epochs` is no int of at least 1.
        """
        self.parts.check_open("Run.epochs")
        require_int("Run.epochs", epochs=epochs)
        if self.parts.loops.innermost is not None:
            raise InvalidArgumentError(
                "Run.epochs: inside the body of another loop. Use run.steps(loader, epochs, name=...) there."
            )
        whole = self.parts.loops.name(name, "Run.epochs")
        self.parts.saving.ranks.begin(self.objects, None, epochs=epochs, name=whole)
        self.parts.loops.asked[whole] = epochs
        return Epochs(self.parts, epochs, whole)

    def validate(self, loader: Iterable[Any], *, name: str = "validate") -> Validation:
        """Returns the batches of a validation, in a step's body: `for batch in run.validate(loader):`.

        The draws of the body before and after it are as without it; the draws of the validation are a
        function of (loop, step, name, batch), and so is the order of a loader that shuffles. `break` ends it
        early.

        Killed inside, the run resumes from the last commit, runs the body of this step again up to here, and
        ends with equal bits. Where the loop keeps its sums in `run.state`, or in objects of the run, it is
        committed inside, too, and the finished batches are skipped; where it keeps them in local variables,
        the validation starts again from its first batch (with a line on stderr, if it is long). Only a plain
        `for` statement over this call resumes inside, without `enumerate` or `tqdm` around it.

        ```python
        if step.ends_epoch:
            run.state.update(total=0.0, seen=0)
            for x, y in run.validate(loader):
                run.state.total += float(loss_fn(model(x), y)) * len(y)
                run.state.seen += len(y)
            scheduler.step(run.state.total / run.state.seen)
        ```

        Args:
            loader: a `samebits.data.DataLoader`, or any iterable that starts anew at each `iter()`.
            name: two validations in the body of one step need two names.
        """
        self.parts.check_open("Run.validate")
        check_loader(loader, "Run.validate")
        self.parts.loops.name(name, "Run.validate")
        return Validation(self.parts, loader, name)

    @explain_wrong_calls(explain_restore)
    def restore(self) -> None:
        """Restores the objects of the run from its commit: call it after the last `run.add`.

        Without this call they are restored at `with` if all of them were given to `Run`, else at the first
        step of the loop. Does nothing if there is no commit, and for objects that are restored already. From
        here on no object of a class of your own is loaded again; modules, optimizers and schedulers that
        change before the first step are put back.

        Raises:
            RunMismatchError: the commit holds an object that the run does not have yet.
        """
        self.parts.check_open("Run.restore")
        self.parts.resuming.restore_now()

    @property
    def finished(self) -> bool:
        """True if no step is left: the loops so far have ended, in the commit that was found or since.

        After `run.steps(...)` was called, with its epochs: a loop that asks for more epochs than the commit
        has is not finished. So `steps = run.steps(loader, epochs=3)` and then `if not run.finished:` around
        what a framework's loop would do.
        """
        return self.parts.loops.finished

    def log(self, **values: Any) -> None:
        """Logs values of this step (numbers or tensors of one element); they go to records and progress bars.

        Raises:
            NonFiniteLossError: `loss` is NaN or infinite (unless `check_loss=False`); nothing is committed.
        """
        values = {name: v.detach() if isinstance(v, torch.Tensor) else v for name, v in values.items()}
        if "loss" in values:
            check_number(values["loss"], "run.log(loss")
            self.parts.saving.loss(values["loss"])
        if (value := self._best.select(values)) is not None:
            self.best(value)
        if self._check_loss and "loss" in values and not math.isfinite(float(values["loss"])):
            where = "outside a loop"
            if (at := process.position) is not None:
                where = f"step {at.step} (epoch {at.epoch}, batch {at.batch_index})"
            raise NonFiniteLossError(
                f"run.log(loss={float(values['loss'])}) at {where}: the loss is not finite, so nothing more "
                "is committed. Lower the learning rate, clip gradients, or pass Run(check_loss=False)."
            )
        notify("logged", self, values)

    @property
    def state(self) -> RunState:
        """Plain values and tensors, saved with the run: `run.state.best = 0.3`, `.get("best", 1e9)`."""
        return self.parts.state

    @state.setter
    def state(self, values: Any) -> None:
        raise InvalidArgumentError(
            "run.state = ...: another object would not be saved. Fill this one: run.state.update(...)."
        )

    @property
    def rank(self) -> int:
        """The rank of this process in this run (`torch.distributed`); 0 if it is the only one."""
        return self.parts.saving.ranks.rank

    @property
    def world_size(self) -> int:
        """The number of processes of this run."""
        return self.parts.saving.ranks.world_size

    def sum_over_ranks(self, values: Mapping[str, float]) -> dict[str, float]:
        """Returns each value summed over the run's processes in rank order: the same bits on all of them.

        Decisions for all ranks (`run.stop()`, a scheduler's plateau) must use such values. Every rank calls
        it, inside the `with` block; with one process it returns the values.
        """
        return self.parts.saving.ranks.sum_over_ranks(values)

    def best(self, value: float, *, everywhere: bool = False) -> None:
        """Sets the value of the state at the end of this iteration, smaller is better. A state among the best
        `keep_best` is committed, and that commit stays until there are better ones.

        Of several processes rank 0 decides, and the commit may come some steps later, when they exchange
        requests. `everywhere`: all of them call this in this step, and so the commit is of this very state.
        """
        check_number(value, "run.best(value")
        self.parts.saving.best(float(value), everywhere=everywhere)

    def commit(self) -> None:
        """Requests a commit at the end of the current iteration (state is complete only between two of them).

        After a loop that has ended it commits at once.
        """
        self.parts.check_open("Run.commit")
        self.parts.saving.request_commit()

    def stop(self) -> None:
        """Ends the loop after this iteration: it counts as finished, and is committed."""
        self.parts.stop_requested = True

    def _open(self) -> None:
        saving, where = self.parts.saving, shown_run_dir(self.run_dir)
        environment = self._environment = self.parts.environment = Environment.current(
            self.objects, self.world_size
        )
        found = saving.open(where)
        manifest = None if found is None else found[0]
        if manifest is not None and rank_agreement.is_of_shards(manifest):
            self.parts.share(manifest.environment["shards"])
        settled = saving.ranks.agree_on_seed(environment_check.resolve_seed(manifest, where))
        saving.begin(settled, environment, manifest)
        self.parts.key = process.run_key = int_keys.fold(int_keys.root(settled.seed), "run")
        process.rank_key = () if self.parts.shards is not None else saving.ranks.key
        if found is None:
            return
        self.parts.resuming.load(*found, environment, self._allowed)
        if self.rank == 0:  # the ranks run the same program
            self.parts.notes.load(found[0].note, found[0])
        self.resumed = True
        if self.rank == 0:
            self.parts.resuming.print_position(found[0])


_ATTRIBUTES = frozenset({"run_dir", "resumed", "objects", "parts", "state"})
_OPTIONS = tuple(name for name in inspect.signature(Run).parameters if name != "stateful")


def _check_thread() -> None:
    """Raises `InvalidArgumentError` while a run is open in another thread."""
    for thread in process.open_runs.values():
        if thread is not threading.current_thread() and thread.is_alive():
            raise InvalidArgumentError(
                f"Run: a run is open in another thread of this process ({thread.name}). The global "
                "generators of torch, NumPy and Python, which a run sets at each step, belong to the "
                "process: both would end with other bits. Train one after the other, or in processes of "
                "their own."
            )
