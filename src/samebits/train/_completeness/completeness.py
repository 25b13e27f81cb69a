"""Does the commit hold everything that the loop carries from one step to the next? `Run` looks while it trains.

At some boundaries (`Completeness.due`) it hashes what can be reached from the run and from the frame of the user's loop
(`reach`). What has changed since the last look, is in no commit, and is not written again before the next iteration reads
it (`liveness` for locals, `read_before_write` for the rest) would be lost by a resume: `IncompleteStateError`.

In between it compares how the run's modules are built and what the process is set to (`structure`), which no commit holds:
another submodule, hook or `p` in the middle of the training would be lost, too, unless every step sets it anew.

Looking draws nothing, calls nothing of the user's but `state_dict` (as a commit does), keeps no object and writes
nowhere. It cannot see what is held by C code that offers no way to read it (a cursor), in files, in other processes (a
dataset's copy in a worker), what is deeper than five objects, nor what changes after the last look.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch

from samebits._context import Position, process
from samebits._inspect import structure, user_code
from samebits._inspect._program import loop_locals
from samebits._inspect._program.user_functions import UserFunctions
from samebits.errors import IncompleteStateError, InvalidArgumentError
from samebits.train._completeness import assigned_attributes, reachable_state
from samebits.train._completeness.incomplete_state_message import message
from samebits.train._completeness.lost_changes import Change, Late, LostChanges, late_changes
from samebits.train._state import run_state as state

_FIRST_STEPS = 3
_FIRST_EPOCHS = 2
_SHARE = 0.002
"""Of the time, for looks after the first ones; at most this many."""
_MOST = 64
_SHARE_OF_GLANCES = 0.001
"""Of the time, for looks at nothing but how modules are built and what the process is set to."""


class Completeness:
    """Looks at a run between two iterations; raises `IncompleteStateError` for what a resume would lose."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._ignored: dict[str, bool] = {}
        """Paths given to `ignore`, and whether anything of that path was seen."""
        self._loop: str | None = None
        self._before: reachable_state.StateSnapshot | None = None
        self._program: UserFunctions | None = None
        self._judge = LostChanges()
        self._looks = self._steps = self._epochs = 0
        self._spent = self._glanced = self._glance = 0.0
        self._structure: dict[str, structure.Structure] = {}
        """Of each module that was seen, and under "" of the process."""
        self._began = time.perf_counter()
        self._clocks = _clocks()

    def ignore(self, path: str) -> None:
        """What is at `path`, or below it, may change without being saved."""
        if not isinstance(path, str) or not path:
            raise InvalidArgumentError(
                f'run.ignore({path!r}): a path as the error gives it, such as "losses" or "ema.counter".'
            )
        self._ignored.setdefault(path, False)

    def boundary(
        self, position: Position, frame: FrameType, objects: Mapping[str, Any], run_state: Any, loader: Any
    ) -> None:
        """Looks if it is time to: after each of the first steps and epochs, then as 0.2% of the time allows."""
        if not self._enabled or not process.overrides.check_complete:
            return
        started = time.perf_counter()
        whole = self._due(position, started)
        if not whole and self._glanced + self._glance > _SHARE_OF_GLANCES * (started - self._began):
            return
        changes: list[Change] = []
        try:
            settings = structure.of_process()  # before no_grad changes one
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                if whole:
                    changes = self._look(frame, objects, run_state, loader)
                late = self._late(frame, objects, settings, whole=whole)
        except Exception as error:  # an object that cannot be looked at must not end a run
            self._enabled = False
            user_code.warn(
                f"Run: the check for forgotten state is off from here: {type(error).__name__}: {error}",
            )
            return
        took = time.perf_counter() - started
        if whole:
            self._spent += took
        else:
            self._glance, self._glanced = took, self._glanced + took
        if changes or late:
            raise IncompleteStateError(message(changes, late, position))

    def close(self) -> None:
        """The run is over: warns of paths that were to be ignored and are nowhere."""
        unseen = [path for path, seen in self._ignored.items() if not seen]
        if unseen and self._looks > 1:
            user_code.warn(
                f"run.ignore: nothing that the run could see has the path {', '.join(map(repr, unseen))}. Remove the call, or "
                "correct the path.",
            )

    def _due(self, position: Position, now: float) -> bool:
        if position.loop != self._loop:
            self._loop, self._before, self._steps, self._epochs = position.loop, None, 0, 0
            self._structure = {}
        self._steps += 1
        ends_epoch = position.batch_index == 0 and position.epoch > 0
        self._epochs += ends_epoch
        if self._steps <= _FIRST_STEPS + 1 or (ends_epoch and self._epochs <= _FIRST_EPOCHS):
            return True
        cost = self._spent / max(1, self._looks)
        return self._looks < _MOST and self._spent + cost <= _SHARE * (now - self._began)

    def _late(
        self, frame: FrameType, objects: Mapping[str, Any], settings: structure.Structure, *, whole: bool
    ) -> list[Late]:
        """What changed since the last look in how modules are built; unless `whole`, of those that the run was given."""
        assert self._program is not None
        assert self._before is not None
        if whole:
            frames = loop_locals.loop_frames(frame)
            now = {
                **self._before.structure,
                "": {**settings, **assigned_attributes.values(frames, self._program)},
            }
            loop_locals.release_locals(frames)
        else:
            modules = [(name, one) for name, one in objects.items() if isinstance(one, torch.nn.Module)]
            now = {**structure.of_modules(modules), "": {**self._structure[""], **settings}}
        late = late_changes(self._structure, now)
        self._structure |= now
        late = [one for one in late if not any(_below(one.path, ignored) for ignored in self._ignored)]
        return self._judge.unsettled(late, frame, self._program, self._before)

    def _look(
        self, frame: FrameType, objects: Mapping[str, Any], run_state: Any, loader: Any
    ) -> list[Change]:
        if self._program is None:
            self._program = UserFunctions(frame)
        self._looks += 1
        saved = state.gather(objects) | {"run_state": run_state}
        now = reachable_state.take(frame, objects, saved, loader, self._program)
        for path in self._ignored:
            self._ignored[path] |= any(_below(one, path) for one in now.leaves_by_path)
        before, self._before = self._before, now
        clocks, self._clocks = self._clocks, _clocks()
        if before is None:
            return []
        changed = {
            path: Change(path, before.leaves_by_path[path], leaf, now)
            for path, leaf in now.leaves_by_path.items()
            if path in before.leaves_by_path and before.leaves_by_path[path].hashed != leaf.hashed
        }
        changed = {
            p: c for p, c in changed.items() if not any(_below(p, ignored) for ignored in self._ignored)
        }
        if not changed:
            return []
        between = list(zip(clocks, self._clocks, strict=True))
        return self._judge.lost(
            changed, frame, self._program, between, {"run.state": dict(run_state), **_plain(objects, saved)}
        )


def _plain(objects: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """The states of objects that are neither modules nor optimizers nor of torch's making."""
    return {
        name: saved["objects"][name]
        for name, thing in objects.items()
        if not type(thing).__module__.startswith("torch.")
    }


def _below(path: str, ignored: str) -> bool:
    path = path.removeprefix("len(")
    return path.startswith(ignored) and (len(path) == len(ignored) or path[len(ignored)] in ".[)")


def _clocks() -> list[float]:
    """What the clocks that programs keep readings of say now."""
    return [time.time(), time.perf_counter(), time.monotonic(), time.process_time()]
