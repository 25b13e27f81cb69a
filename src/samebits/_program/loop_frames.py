"""The user's frames around a loop, read once at a boundary: what they carry, and other answers."""

from __future__ import annotations

import inspect
import sys
import types
from functools import cached_property
from itertools import chain
from typing import Any

from samebits._inspect.user_code import is_library, outwards
from samebits._objects.hashes import PLAIN, Leaves
from samebits._objects.walk import LeafWalk
from samebits._program.carried_locals import is_in_loop, liveness_at, names_read
from samebits._program.inner_loops import running_loops

Place = tuple[types.CodeType, int]
"""Code, and the offset of the instruction that runs in it."""
Variables = dict[str, Any]


class LoopFrames:
    """The frames around `frame`, which fetches a batch; without one all answers are empty."""

    def __init__(self, frame: types.FrameType | None) -> None:
        self._frame = frame

    @property
    def frame(self) -> types.FrameType:
        """The frame that fetches a batch."""
        assert self._frame is not None
        return self._frame

    @cached_property
    def user(self) -> list[types.FrameType]:
        """The user's frames from the one that fetches a batch up to that of the loop around it.

        A loop in a user's generator also has the frame of its consumer, which carries locals, too.
        """
        frames = []
        for frame in outwards(self._frame):
            if not is_library(frame.f_code.co_filename):
                frames.append(frame)
                loops = is_in_loop(frame.f_code, frame.f_lasti)
                generates = frame.f_code.co_flags & inspect.CO_GENERATOR
                if (loops and not generates) or frame.f_code.co_name == "<module>":
                    break
        return frames or ([] if self._frame is None else [self._frame])

    @cached_property
    def fetching(self) -> list[Place]:
        """The places from the frame that fetches a batch to the innermost loop."""
        places = []
        for one in self.user:
            places.append((one.f_code, one.f_lasti))
            if is_in_loop(*places[-1]):
                return places
        return places[:1]

    @cached_property
    def calling(self) -> list[Place]:
        """The places in the user's frames outside of those: they go on when the loop has ended."""
        users = [one for one in outwards(self.frame.f_back) if not is_library(one.f_code.co_filename)]
        return [place for one in users if (place := (one.f_code, one.f_lasti)) not in self.fetching]

    @cached_property
    def _names(self) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        return [_carried_in_frame(one) for one in self.user]

    @cached_property
    def carried(self) -> tuple[Variables, Variables]:
        """The two groups of `Liveness.carried`, with values, of the loop and of the loops that drive it.

        The first has those of `carried_if_an_inner_loop_is_empty`, too.
        """
        groups: tuple[Variables, Variables] = ({}, {})
        for one, both in zip(self.user, self._names, strict=True):
            found = one.f_locals
            for variables, names in zip(groups, both, strict=True):
                for name in names:
                    if name in found:
                        variables.setdefault(name, found[name])
        return groups

    @cached_property
    def carried_if_an_inner_loop_is_empty(self) -> frozenset[str]:
        """The names of `carried` that are read only if an inner loop runs no time.

        For example `loss` after `for micro_step in range(n): loss = ...`, where `n` changes between steps.
        """
        names: set[str] = set()
        for one, both in zip(self.user, self._names, strict=True):
            found = liveness_at(one.f_code, one.f_lasti)
            names |= {*chain(*both)} - {*chain(*found.carried(found.inner_loops))}
        return frozenset(names)

    @cached_property
    def assigned(self) -> tuple[Variables, Variables]:
        """Those of `carried` that the body of the loop assigns.

        Of the second group only these can change: another object has another variable, too, that the body
        reads.
        """
        groups: tuple[Variables, Variables] = ({}, {})
        for one, both in zip(self.user, self._names, strict=True):
            held, assigned = one.f_locals, liveness_at(one.f_code, one.f_lasti).assigned
            for variables, names in zip(groups, both, strict=True):
                variables |= {name: held[name] for name in names if name in assigned and name in held}
        return groups

    @property
    def left(self) -> Variables:
        """The variables that the loop leaves to the code behind it, with their values."""
        found: Variables = {}
        for inner in self.user[:1]:
            names, held = liveness_at(inner.f_code, inner.f_lasti).left(), inner.f_locals
            found = {name: held[name] for name in sorted(names) if name in held}
        return found

    @cached_property
    def script_globals(self) -> Variables:
        """The script's globals that its functions use."""
        script = vars(sys.modules["__main__"])
        for frame in outwards(self._frame):
            if frame.f_globals is script and frame.f_code.co_name == "<module>":
                names = names_read(frame.f_code)
                return {name: script[name] for name in names if name in script and not name.startswith("__")}
        return {}

    def name_of(self, loader: Any, otherwise: str = "loader") -> str:
        """Returns the name of a loader, or of its source, in the functions around the loop."""
        names = [name for frame in self.user for name, value in frame.f_locals.items() if value is loader]
        return names[0] if names else otherwise

    def release(self) -> None:
        """Empties the dicts of the frames' locals: see `release_locals`."""
        release_locals(self.user)


def take(
    frame: types.FrameType | None, objects: dict[str, Any], loader: Any = None, *, at_exit: bool = False
) -> dict[str, Leaves]:
    """Returns the components that the loop in `frame` holds. Bounded; never raises for a user's object.

    `scalars`: live locals that are plain values; liveness alone proves that a following body reads them.
    `locals`: the other live locals, the script's globals, and the attributes of `objects` and of `loader`
    (only the iterator holds it, whether or not a variable still names it).
    `locals_at_exit`: locals that only the code after the loop reads: state where the loop ends, nowhere else.
    """
    frames = LoopFrames(frame)
    carried, after_loop = frames.carried
    scalars, others, exits = LeafWalk(), LeafWalk(), LeafWalk()
    others.skip(objects)
    for name, value in sorted(carried.items()):
        (scalars if type(value) in PLAIN else others).value(name, value, 0)
    for name, value in sorted(frames.script_globals.items()):
        if name not in carried:
            others.value(name, value, 0)
    if loader is not None:
        others.value(frames.name_of(loader), loader, 0)
    for name, value in objects.items():
        others.value(name, value, 0)
    taken = {"scalars": scalars.leaves(), "locals": others.leaves()}
    if at_exit:
        for name, value in sorted(after_loop.items()):
            exits.value(name, value, 0)
        taken["locals_at_exit"] = exits.leaves()
    return taken


def _carried_in_frame(frame: types.FrameType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of `Liveness.carried`, where the inner loops that surely run are known to run."""
    found = liveness_at(frame.f_code, frame.f_lasti)
    names = found.carried()
    if names == found.carried(found.inner_loops):  # no name depends on it
        return names
    return found.carried(running_loops(found.inner_loops, found.flow, frame))


_HELD_BY_FRAME = 3
"""The references to a dict of locals: by the frame, a local variable, and the argument of `getrefcount`."""


def release_locals(frames: list[types.FrameType]) -> None:
    """Empties the dicts of frames' `f_locals`: before Python 3.13 they keep this step's tensors alive.

    A dict that is referenced elsewhere (`locals()`, a debugger) is not changed.
    """
    if sys.version_info >= (3, 13):
        return
    for frame in frames:
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            held = frame.f_locals
            if sys.getrefcount(held) == _HELD_BY_FRAME:
                held.clear()
