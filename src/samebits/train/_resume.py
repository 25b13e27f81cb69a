"""Resumes a run: restores a committed state once the program has created its objects.

A commit inside a validation continues there. A body of Python cannot be entered in its middle, so that commit
holds two states: that of the last boundary, from which the body is run again up to the validation, and that
between two batches of the validation, which is restored there. That is correct only where nothing else
changes from batch to batch: values in locals, say, would be those of the first batch. `CarriedValues` finds
them; the validation then starts again from its first batch, and the bits are equal, too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from samebits import _digest as digest
from samebits._context import Position
from samebits._inspect import user_code
from samebits._objects.walk import hashes_in
from samebits._program import take
from samebits.checkpoint._manifest import Manifest
from samebits.errors import CorruptCommitError, RunMismatchError, SamebitsError
from samebits.state._in_place import Restored
from samebits.train import _committed_state as committed
from samebits.train import _parameter_groups as parameter_groups
from samebits.train._aliases import RunState, share_again
from samebits.train._committed_state import CommittedState, ValidationState
from samebits.train._environment_check import Environment
from samebits.train._loop.entry_state import EntryState, decoded
from samebits.train._loop.loop_positions import Loops
from samebits.train._object_checks import check_fits
from samebits.train._object_states import Stateful, is_programs_own
from samebits.train._parameter_groups import AddedGroups

_TORCHS = torch.nn.Module, torch.optim.Optimizer
"""Types whose state_dict the walk itself leaves out."""


FindUnsaved = Callable[[], list[str]]
"""Returns the paths of values that change from batch to batch and are not saved."""


@dataclass(frozen=True)
class CarriedValues:
    """Hashes of what the loop over a validation carries and the run does not save; None where unknown."""

    hashes: Mapping[str, bytes] | None
    saved: Mapping[str, frozenset[bytes]]
    """Per name of an object of the run: hashes of the content of its state_dict."""

    @classmethod
    def of_frame(cls, frame: FrameType, objects: Mapping[str, Any], *, direct: bool) -> CarriedValues:
        """Returns the values carried by the `for` in `frame`; it must be `direct` (no enumerate between)."""
        if not direct:
            return cls(None, {})
        parts = take(frame, dict(objects), at_exit=True).values()
        hashes = {name: hashed for leaves in parts for name, hashed in leaves.by_name().items()}
        own = {name: thing for name, thing in objects.items() if not isinstance(thing, _TORCHS)}
        held = frame.f_locals.items()
        held = {name: [thing for thing in own.values() if thing is value] for name, value in held}
        own |= {name: things[0] for name, things in held.items() if things}
        return cls(hashes, {name: hashes_in(name, thing.state_dict()) for name, thing in own.items()})

    def changes(self, now: CarriedValues) -> list[str]:
        """Returns the paths that differ between two batches and are not saved; [] when there are none."""
        if self.hashes is None or now.hashes is None:
            return ["something between the for statement and run.validate (enumerate, zip, tqdm)"]
        before = self.hashes
        differing = [name for name in {*before, *now.hashes} if before.get(name) != now.hashes.get(name)]
        saved = ((name, now.saved.get(name.split(".")[0], ())) for name in differing)
        return sorted(name for name, known in saved if now.hashes.get(name) not in known)


def print_restart(name: str, changes: list[str]) -> None:
    """Prints why a kill restarts this validation from its first batch."""
    print(
        f"samebits: a kill in run.validate(name={name!r}) restarts it from its first batch, because "
        f"{', '.join(changes[:4])} changes from batch to batch and is not saved. Keep it in run.state, or in "
        "an object of the run, to resume inside.",
        file=sys.stderr,
    )


class ResumeState:
    """The committed state of the run in `where`; there is none before `load`."""

    def __init__(
        self, where: str, objects: Mapping[str, Stateful], run_state: RunState, loops: Loops
    ) -> None:
        self._where, self._objects, self._run_state, self._loops = where, objects, run_state, loops
        self.groups = AddedGroups(objects)
        self.cure_of_missing = ""
        """The cure for objects that only the commit has, where nobody can type `run.add`."""
        self.saved: CommittedState | None = None
        self._inside: ValidationState | None = None
        """The validation that the commit is in, until it has been entered."""
        self._restored = self._on_demand = False
        """If the objects were restored before the loop, and if the program asked for it (`run.restore()`)."""
        self._entered = False
        """If the state is that of an epoch's begin, or of a loop's end."""
        self.made: dict[int, Any] = {}
        """The objects that were made for saved ones, by their ids, until the loop begins."""
        self._loaded: dict[str, str] = {}
        """Digests of the states of objects of the program's own classes, once they were loaded."""

    def load(
        self, manifest: Manifest, tree: dict[str, Any], environment: Environment, allowed: frozenset[str]
    ) -> None:
        """Reads a commit, and restores it if all its objects are there; else `run.add` is still to come.

        Raises RunMismatchError for one of another program, environment or hyperparameters, before any change;
        CorruptCommitError for what no run writes.
        """
        with self._refusing():
            saved = CommittedState.of(tree)
            environment.check(manifest, self._where, allowed)
            check_fits(self._objects, saved, self._where, complete=False)
            before = manifest.environment.get("optimizers", {})
            environment.hyperparameters.check(before, self._where, allowed)
            environment.resume(manifest, self._where, allowed)
            self.saved, self._inside = saved, saved.inside
            if saved.loops is not None:
                self._loops.load(saved.loops)
            if self._objects.keys() == saved.objects.keys():
                self._restore(saved)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Makes a `CorruptCommitError` of an error that only a forged commit can cause."""
        try:
            yield
        except (SamebitsError, MemoryError):
            raise
        except Exception as error:
            raise CorruptCommitError(
                f"the newest commit in {self._where} holds what no run writes ({error!r:.200}). Remove its "
                "folder to resume from the one before."
            ) from error

    def print_position(self, manifest: Manifest) -> None:
        """Prints the position that the run resumes from to stderr."""
        at = "at step {step} (epoch {epoch}, batch {batch_index})".format_map(manifest.position)
        text = f"resumed {self._where} {at}"
        if manifest.finished:
            text = (
                f"the run in {self._where} had finished ({manifest.step} steps): a loop that asks for more "
                "epochs continues, else only the code after the loops runs"
            )
        elif self._inside is not None:
            inside = ", to resume at batch {batch} of {name!r} in step {step}"
            text += inside.format_map(vars(self._inside))
        print(f"samebits: {text}", file=sys.stderr)

    def check_contains(self, name: str) -> None:
        if self.saved is not None and name not in self.saved.objects:
            raise RunMismatchError(
                f"Run.add({name!r}): the commit in {self._where} holds no object of that name."
            )

    def restore_now(self) -> None:
        """Restores the objects at the program's request; without a commit, or a second time, does nothing."""
        if self.saved is None or self._on_demand:
            return
        if not self._restored:
            missing = sorted(self.saved.objects.keys() - self._objects.keys())
            if missing:
                add = "Add all objects first: " + "; ".join(f"run.add({name!r}, ...)" for name in missing)
                raise RunMismatchError(
                    f"run.restore(): the commit in {self._where} holds {', '.join(map(repr, missing))}, "
                    f"which the run does not have yet. {self.cure_of_missing or add}."
                )
            self._restore(self.saved)
        self._on_demand = True

    def enter(self, entry: EntryState | None) -> None:
        """Restores the state in which code began that runs again; `restore_at_loop` follows behind it."""
        if entry is None or self.saved is None:
            return
        with self._refusing():
            before = CommittedState.of(decoded(entry))
            self.groups.make(before.param_groups)
            now, groups = parameter_groups.names(self._objects), before.param_groups
            objects = {
                name: one
                for name, one in self._objects.items()
                if name in before.objects and now.get(name) == groups.get(name)  # more groups by now
            }
            self._restore_changed(objects, before.part_of(objects))
        self._entered = True

    def restore_at_loop(self, *, in_epoch: bool = False) -> None:
        """Restores what is not restored yet, or the program has changed since; the commit is then done with.

        `in_epoch`: the code at the beginning of an epoch has run again, so that changes are as they must be.
        """
        assert self.saved is not None
        with self._refusing():
            self.saved = self._without_added_later(self.saved)
            if self._restored:
                self._put_back(self.saved, in_epoch=in_epoch or self._entered)
            else:
                self._restore(self.saved)
            self.groups.settle()
        self.saved = None  # what is added from here on, between two loops say, is new
        self.made.clear()
        self._on_demand = True

    def _without_added_later(self, saved: CommittedState) -> CommittedState:
        """Returns a commit without the objects that only later code of an epoch adds, or an earlier epoch."""
        current = None if saved.loops is None else saved.loops.current
        anew = set() if current is None else {*current.anew}
        left = (saved.objects.keys() - self._objects.keys()) & anew
        return saved.part_of(saved.objects.keys() - left) if left else saved

    def _restore(self, saved: CommittedState) -> None:
        check_fits(self._objects, saved, self._where)
        self.groups.make(saved.param_groups)
        restored = Restored(self.made)
        committed.restore(self._objects, saved, self._where, restored)
        self._restored = True
        own = {name: thing for name, thing in self._objects.items() if is_programs_own(thing)}
        for name, thing in own.items():
            with suppress(Exception):  # it takes its state over later, when its library is ready
                self._loaded[name] = digest.of_value(thing.state_dict())
        self._refill(self._objects, saved, restored)

    def _put_back(self, saved: CommittedState, *, in_epoch: bool) -> None:
        check_fits(self._objects, saved, self._where)
        self.groups.make(saved.param_groups)
        again = in_epoch or not self._on_demand
        changed = self._restore_changed(self._objects, saved, self._loaded, again=again)
        if changed and not in_epoch:
            names = ", ".join(changed)
            user_code.warn(
                f"{self._where}: {names} changed after it was restored and before the first step. "
                + (
                    "So its load_state_dict was called again. Change it before `with`, or only `if not "
                    "run.resumed`; or call run.restore() where it is to be loaded, after which it is not "
                    "loaded again."
                    if again
                    else "It was not loaded again, and the run continues with the changed state: change it "
                    "before run.restore(), or only `if not run.resumed`. If load_state_dict keeps the "
                    "state to apply it later, let state_dict return that state until then."
                )
            )

    def _restore_changed(
        self,
        objects: Mapping[str, Stateful],
        saved: CommittedState,
        loaded: Mapping[str, str] | None = None,
        *,
        again: bool = True,
    ) -> list[str]:
        restored = Restored(self.made)
        restored.bind_items(saved.run_state, self._run_state, set(saved.aliases.run_state))
        changed = committed.restore_changed(objects, saved, self._where, loaded, restored, again=again)
        self._refill(objects, saved, restored)
        return changed

    def _refill(self, objects: Mapping[str, Stateful], saved: CommittedState, restored: Restored) -> None:
        restored.again()
        self._run_state.refill(saved.run_state, saved.aliases, restored)
        share_again(objects, saved.aliases.optimizers)

    def enter_validation(self, first: Position) -> int:
        """Returns the first batch of this validation: 0, or that of a commit inside it, which is restored."""
        inside = self._inside
        if inside is None or not inside.is_at(first):
            return 0
        self._inside = None
        committed.restore_changed(self._objects, inside.state, self._where)
        self._run_state.refill(inside.state.run_state, inside.state.aliases)
        return inside.batch
