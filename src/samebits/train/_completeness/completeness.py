"""The check during training that a commit holds all that the loop carries from one step to the next.

At some boundaries (`Completeness._is_due`) it hashes the values that can be reached from the run and from the
frame of the user's loop (`reachable_state`). A value that has changed since the last check, is in no commit,
and is not written again before the next iteration reads it (`LoopFrames` for locals, `Program.order` for
the rest) would be lost by a resume: `IncompleteStateError`.

In between it compares the structure of the run's modules and the settings of the process (`structure`), which
no commit holds: a new submodule, hook or `p` in mid-training would be lost, unless every step sets it anew.

A check draws nothing, calls nothing of the user's except `state_dict` (as a commit does), keeps no object and
writes nowhere. It cannot see values in C code that offers no way to read them (a cursor), in files, in other
processes (a dataset's copy in a worker), beyond the first 600 values of the user's objects and 400 of
packages', nor changes after the last check.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Self

import torch

from samebits import _digest as digest
from samebits._context import Position, process
from samebits._inspect import user_code
from samebits._objects import budget, structure
from samebits._program import LoopFrames, OutputFlow, Program
from samebits.errors import IncompleteStateError, IncompleteStateWarning, InvalidArgumentError, SamebitsError
from samebits.train._committed_state import CommittedState, gather
from samebits.train._completeness import reachable_state
from samebits.train._completeness.incomplete_state_message import (
    SeenProgram,
    message,
    printed_message,
    subject_of,
    unlikely_message,
)
from samebits.train._completeness.lost_changes import (
    Change,
    Judged,
    Late,
    LostChanges,
    appeared,
    late_changes,
    renamed,
)

_FIRST_STEPS = 3
_FIRST_EPOCHS = 2
_LATE_STEPS = 256
"""A cache of an installed package is filled before, or at the end of the first epoch."""
_SHARE = 0.002
"""The share of the time for checks after the first ones."""
_EXTRA_SECONDS = 0.1
"""The time for checks beyond that share, at ends of epochs."""
_MOST = 64
"""The number of checks of a run after which only the first steps and epochs of a loop are checked."""
_SHARE_OF_GLANCES = 0.001
"""The share of the time for comparing only the structure of modules and the settings of the process."""


@dataclass
class SharedPaths:
    """The paths that the checks of a run's loops have in common."""

    ignored: dict[str, bool] = field(default_factory=dict)
    """Those given to `ignore`, and True for those that were seen."""
    trusted: set[str] = field(default_factory=set)
    """The names of objects that are not looked into."""
    warned: set[str] = field(default_factory=set)
    """The subjects of the warnings so far."""
    unraised: dict[str, SamebitsError] = field(default_factory=dict)
    """The paths of what was found and not raised (`raise_incomplete`), each with the message."""


class Completeness:
    """The check between two iterations; raises `IncompleteStateError` for state that a resume would lose."""

    def __init__(self, *, enabled: bool, steps: SharedPaths | None = None) -> None:
        """`steps`: the paths of the check of the steps, for the check of the loop over epochs around them."""
        self.enabled = enabled
        """False with `check_complete=False`, and after an object could not be read."""
        self._shared = steps or SharedPaths()
        self.ignored, self.trusted = self._shared.ignored, self._shared.trusted
        self.unraised = self._shared.unraised
        self._loop: str | None = None
        self._before: reachable_state.StateSnapshot | None = None
        self._around_steps = steps is not None
        """True for the check of a loop over epochs: its loop over steps always runs."""
        self.at_start: frozenset[str] | None = None
        """The paths that there were before the loop."""
        self._new_epoch = False
        """True until the first check in an epoch of `run.epochs`, which does not judge changes."""
        self._program: Program | None = None
        self._judge = LostChanges()
        self._found: dict[str, Change] = {}
        """The lost changes of the first steps: they are raised together."""
        self.pending = False
        """True from the first lost change to the error: a commit made now would not be complete."""
        self.places: set[tuple[CodeType, int]] = set()
        """The `for` statements around which iterators were looked for."""
        self._recomputed: set[str] = set()
        """The paths of values that had changed and that a step sets before it reads them."""
        self._looks = self._steps = self._epochs = 0
        self._spent = self._glanced = self._glance = 0.0
        self._structure: dict[str, structure.Structure] = {}
        """The structure of each module that was seen, and under "" that of the process."""
        self._began = time.perf_counter()
        self._clocks = clocks_now()

    def ignore(self, path: str) -> None:
        """Allows the value at `path`, and those below it, to change without being saved."""
        if not isinstance(path, str) or not path:
            raise InvalidArgumentError(
                f'run.ignore({path!r}): a path as the error gives it, such as "losses" or "ema.counter".'
            )
        self.ignored.setdefault(path, False)

    @property
    def printed(self) -> frozenset[str]:
        """The paths of what was seen to change and flows only into output."""
        return frozenset(self._shared.warned)

    @property
    def harmless(self) -> frozenset[str]:
        """The paths of changes that flow only into output, are set before they are read, or are ignored."""
        return self.printed | self._recomputed | self.ignored.keys()

    @property
    def generators(self) -> list[reachable_state.RootedGenerator] | None:
        """The generators that the last check found; None before the first one."""
        return None if self._before is None else self._before.found

    def program(self, frames: LoopFrames) -> Program:
        """Returns the user's functions, read once."""
        if self._program is None:
            self._program = Program(frames, "samebits.train._loop")
        return self._program

    def is_allowed(self, path: str) -> bool:
        """Returns True for a path that was given to `ignore`, which counts as seen then."""
        self.ignored |= {path: True} if path in self.ignored else {}
        return path in self.ignored

    def between_epochs(self) -> Completeness:
        """Returns the check for the loop over epochs around these steps, with the same paths and names."""
        return Completeness(enabled=self.enabled, steps=self._shared)

    def begin_epoch(self) -> None:
        """Begins an epoch whose code runs again before a resumed run has its state: its variables are new."""
        self._new_epoch = True

    def boundary(self, position: Position, look: Look, *, ends: bool = False) -> None:
        """Checks if due: after the first steps and epochs, at doublings of their number, as time allows.

        What the first three steps would lose is one IncompleteStateError, after the third or at the end of
        the loop (`ends`).
        """
        if not self.enabled or not process.overrides.check_complete:
            return
        started = time.perf_counter()
        whole = self._is_due(position, started)
        if not whole and self._glanced + self._glance > _SHARE_OF_GLANCES * (started - self._began):
            return
        with look:
            try:
                judged, late = self._seen(look, whole=whole)
            except Exception as error:  # an object that cannot be read must not end a run
                self.enabled = False
                user_code.warn(
                    f"Run: the check for forgotten state is off from here: {type(error).__name__}: {error}"
                )
                return
            took = time.perf_counter() - started
            if whole:
                self._spent += took
            else:
                self._glance, self._glanced = took, self._glanced + took
            self._tell(judged, late, position, look, ends=ends)

    def _seen(self, look: Look, *, whole: bool) -> tuple[Judged, list[Late]]:
        settings = structure.of_process()  # before no_grad changes one
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass(), budget.one_check():
            judged = self._judge_changes(look) if whole else Judged()
            return judged, self._late_changes(look, settings, whole=whole)

    def _tell(self, judged: Judged, late: list[Late], position: Position, look: Look, *, ends: bool) -> None:
        """Warns of what was found, or raises an error, now or when the first steps are over."""
        raises = process.overrides.raise_incomplete
        self._found |= {one.path: one for one in judged.lost if one.path not in self.unraised}
        late = late if raises else []
        self.pending = raises and bool(self._found)
        self._recomputed |= {one.path for one in judged.recomputed}
        self._warn(judged.printed, printed_message)
        if not self._around_steps:
            self._warn(judged.unlikely, unlikely_message)
        if late or (self._found and (ends or self._steps > _FIRST_STEPS)):
            changes, self._found = list(self._found.values()), {}
            first = not late and self._steps <= _FIRST_STEPS + 1
            more = self._assigned_later(look, changes) if first else []
            error = IncompleteStateError(message(changes, late, position, more, look.seen_by_reader()))
            if raises:
                raise error
            self.unraised.update(dict.fromkeys([one.path for one in changes], error))

    def _warn(self, changes: list[Change], text: Callable[[list[str]], str]) -> None:
        """Warns once of values that stop no run."""
        found = {subject_of(one) for one in changes} - self._shared.warned
        if found:
            self._shared.warned |= found
            user_code.warn(text(sorted(found)), IncompleteStateWarning)

    def _assigned_later(self, look: Look, changes: list[Change]) -> list[str]:
        """Returns the other variables that the loop carries and assigns, perhaps only at an epoch's end."""
        known = {one.now.places[0].name for one in changes} | self.ignored.keys()
        known |= look.frames.carried_if_an_inner_loop_is_empty
        held = {id(thing) for thing in look.objects.values()}
        return [
            name
            for group in look.frames.assigned
            for name, value in sorted(group.items())
            if name not in known and id(value) not in held
            if not look.flow.variable(look.frame.f_code, name)
        ]

    def close(self) -> None:
        """Ends the check: warns of ignored paths that no value of the run had."""
        unseen = [path for path, seen in self.ignored.items() if not seen]
        if unseen and self._looks > 1:
            user_code.warn(
                f"run.ignore: nothing that the run could see has the path {', '.join(map(repr, unseen))}. "
                "Remove the call, or correct the path."
            )

    def _is_due(self, position: Position, now: float) -> bool:
        if position.loop != self._loop:
            self._loop, self._before, self._steps, self._epochs = position.loop, None, 0, 0
            self._structure, self.at_start = {}, None
        self._steps += 1
        ends_epoch = position.batch_index == 0 and position.epoch > 0
        self._epochs += ends_epoch
        if self._steps <= _FIRST_STEPS + 1 or (ends_epoch and self._epochs <= _FIRST_EPOCHS):
            return True
        # however dear a look is: the time between two of these doubles
        if self._steps.bit_count() == 1 or (ends_epoch and self._epochs.bit_count() == 1):
            return self._looks < 2 * _MOST
        cost = self._spent / max(1, self._looks)
        extra = _EXTRA_SECONDS if ends_epoch else 0.0  # the third epoch of a run of a few seconds
        return self._looks < _MOST and self._spent + cost <= _SHARE * (now - self._began) + extra

    def _late_changes(self, look: Look, settings: structure.Structure, *, whole: bool) -> list[Late]:
        """Returns changes of structure since the last check that no iteration sets anew and no clock gave.

        Unless `whole`, only of the run's modules.
        """
        assert self._program is not None
        assert self._before is not None
        if whole:
            now = {
                **self._before.structure,
                "": {**settings, **self._program.assigned_attributes(look.frames)},
            }
        else:
            modules = [(name, one) for name, one in look.objects.items() if isinstance(one, torch.nn.Module)]
            now = {**structure.of_modules(modules), "": {**self._structure[""], **settings}}
        late = late_changes(self._structure, now)
        self._structure |= now
        late = [one for one in late if not any(_is_below(one.path, path) for path in self.ignored)]
        if not late:
            return []
        written_first, uses = self._program.order(look.frames, self._before)
        late = [one for one in late if not written_first.settled(one.place)]
        return [one for one in late if not uses.timed(one.place.name)]

    def _judge_changes(self, look: Look) -> Judged:
        self._looks += 1
        saved = gather(look.objects, look.run_state)
        new = self._looks.bit_count() == 1  # the first and the second time, and then more and more seldom
        now = reachable_state.take(
            look.frames, look.objects, saved, look.loader, look.program,
            ignored=self.ignored, trusted=self.trusted, steering=look.steering,
            known=None if new or self._before is None else self._before.found,
        )  # fmt: skip
        states = own_states(look.objects, saved)
        now.states = digests_of(states)
        if self.at_start is None:
            self.at_start = frozenset({**now.leaves_by_path, **now.named})
        for path in self.ignored:
            self.ignored[path] |= any(_is_below(one, path) for one in now.leaves_by_path)
        before, self._before = None if self._new_epoch else self._before, now
        self._new_epoch = False
        clocks, self._clocks = self._clocks, clocks_now()
        if before is None:
            return Judged()
        now.states_before = before.states
        changed = {
            path: Change(path, before.leaves_by_path[path], leaf, now)
            for path, leaf in now.leaves_by_path.items()
            if path in before.leaves_by_path and before.leaves_by_path[path].hashed != leaf.hashed
        }
        changed |= {change.path: change for change in (*appeared(before, now), *renamed(before, now))}
        states = {"run.state": dict(look.run_state), **states}
        changed = self._judge.parted(now, states) | changed
        changed = {path: change for path, change in changed.items() if not self.is_ignored(change)}
        if not changed:
            return Judged()
        between = {name: (clocks[name], now) for name, now in self._clocks.items()}
        self._judge.is_late = self._steps > _LATE_STEPS and self._epochs != 1
        return self._judge.judge(changed, look.frames, look.program, between, states, look.committed)

    def is_ignored(self, change: Change) -> bool:
        """Returns True for a value at or below an ignored path, or reached through its object by another."""
        if any(_is_below(change.path, ignored) for ignored in self.ignored):
            return True
        return not change.taken.ignored.isdisjoint(change.now.way)


class Look:
    """The frames around a loop between two iterations, with its loader and the objects of the run.

    `with look:` drops at its end what was read of the frames, and empties the dicts of their locals.
    """

    def __init__(
        self, checks: Completeness, frame: FrameType, loader: Any, objects: dict[str, Any], run_state: Any
    ) -> None:
        self.checks, self.frame, self.loader = checks, frame, loader
        self.objects, self.run_state = objects, run_state

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.frames.release()
        for name in ("frames", "program", "committed"):
            vars(self).pop(name, None)

    @functools.cached_property
    def frames(self) -> LoopFrames:
        return LoopFrames(self.frame)

    @functools.cached_property
    def program(self) -> Program:
        """The user's functions."""
        return self.checks.program(self.frames)

    @functools.cached_property
    def committed(self) -> frozenset[str]:
        """The names of variables that hold the run, its objects or loader; and the objects' own names."""
        held = {id(thing) for thing in [*self.objects.values(), self.loader] if thing is not None}
        scopes = [{**one.f_globals, **one.f_locals} for one in self.frames.user]
        named = [(name, one) for scope in scopes for name, one in scope.items()]
        found = {name for name, one in named if type(one).__module__ == "samebits.train._run"}
        found |= {name for name, one in named if id(one) in held}
        return frozenset(found | self.objects.keys())

    @property
    def flow(self) -> OutputFlow:
        """The search for values that flow only into output."""
        return self.program.only_output(self.committed)

    def steering(self, name: str, fields: set[str]) -> set[str]:
        """Returns those attributes of the object of this name that flow into more than output."""
        read = fields & {one for code in self.program.codes for one in code.co_names}
        return read & self.flow.steering(name) if read else read

    def seen_by_reader(self) -> SeenProgram:
        """Returns the program as one sees it who pastes the lines of a message."""
        return SeenProgram(self.frame, self.objects, self.program.modules, self.checks.at_start or ())


def _is_below(path: str, ignored: str) -> bool:
    path = path.removeprefix("len(")
    return path.startswith(ignored) and (len(path) == len(ignored) or path[len(ignored)] in ".[)")


def own_states(objects: Mapping[str, Any], saved: CommittedState) -> dict[str, Any]:
    """Returns the states of the objects whose class is not from torch, by name."""
    own = [name for name, one in objects.items() if not type(one).__module__.startswith("torch.")]
    return {name: saved.objects[name] for name in own}


def digests_of(states: Mapping[str, Any]) -> dict[str, str]:
    return {name: digest.of_value(value) for name, value in states.items()}


def clocks_now() -> dict[str, float]:
    """Returns the time by each clock that programs keep readings of."""
    clocks = time.time, time.perf_counter, time.monotonic, time.process_time
    return {clock.__name__: clock() for clock in clocks}
