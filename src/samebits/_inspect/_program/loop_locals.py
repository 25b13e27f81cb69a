"""The values that a user's loop holds outside of `Run`: live locals, globals, and the attributes of the user's objects."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from samebits._inspect._program import bytecode, known_items, liveness
from samebits._inspect.reachable import Walk
from samebits._inspect.tree import PLAIN, Leaves
from samebits._inspect.user_code import is_library

_HELD_BY_FRAME = 3
"""The references to a dict of locals: by the frame, a local variable, and the argument of `getrefcount`."""


def take(
    frame: types.FrameType | None, objects: dict[str, Any], loader: Any = None, *, at_exit: bool = False
) -> dict[str, Leaves]:
    """Returns the components that the loop in `frame` holds. Bounded; never raises for a user's object.

    `scalars`: live locals that are plain values; liveness alone proves that a following body reads them.
    `locals`: the other live locals, the script's globals, and the attributes of `objects` and of `loader` (only the
    iterator holds it, whether or not a variable still names it).
    `locals_at_exit`: locals that only the code after the loop reads: state where the loop ends, nowhere else.
    """
    carried, after_loop = ({}, {}) if frame is None else of_frames(frame)
    scalars, others, exits = Walk(), Walk(), Walk()
    others.skip(objects)
    for name, value in sorted(carried.items()):
        (scalars if type(value) in PLAIN else others).value(name, value, 0)
    for name, value in sorted(script_globals(frame).items()):
        if name not in carried:
            others.value(name, value, 0)
    if loader is not None:
        others.value(name_of(loader, loop_frames(frame)), loader, 0)
    for name, value in objects.items():
        others.value(name, value, 0)
    taken = {"scalars": scalars.leaves(), "locals": others.leaves()}
    if at_exit:
        for name, value in sorted(after_loop.items()):
            exits.value(name, value, 0)
        taken["locals_at_exit"] = exits.leaves()
    return taken


def name_of(loader: Any, frames: list[types.FrameType]) -> str:
    """Returns the name of a loader in the functions around a loop."""
    names = [name for frame in frames for name, value in frame.f_locals.items() if value is loader]
    return names[0] if names else "loader"


def loop_frames(frame: types.FrameType | None) -> list[types.FrameType]:
    """Returns the user's frames from the one that fetches a batch up to that of the loop that repeats the fetch.

    A loop in a user's generator also has the frame of its consumer, which carries locals, too.
    """
    frames, fetching = [], frame
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            frames.append(frame)
            loops = liveness.is_in_loop(frame.f_code, frame.f_lasti)
            if (
                loops and not frame.f_code.co_flags & inspect.CO_GENERATOR
            ) or frame.f_code.co_name == "<module>":
                break
        frame = frame.f_back
    return frames or ([] if fetching is None else [fetching])


def fetching_frames(frame: types.FrameType) -> list[tuple[types.CodeType, int]]:
    """Returns the code and the offset of the frames from the one that fetches a batch up to the innermost loop."""
    places = []
    for one in loop_frames(frame):
        places.append((one.f_code, one.f_lasti))
        if liveness.is_in_loop(*places[-1]):
            return places
    return places[:1]


def of_frames(frame: types.FrameType | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the two groups of `Liveness.carried`, with values, of the loop and of the loops that drive it.

    The first has those of `carried_if_an_inner_loop_is_empty`, too.
    """
    groups: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for one in loop_frames(frame):
        found = one.f_locals
        for variables, names in zip(groups, _carried(one), strict=True):
            for name in names:
                if name in found:
                    variables.setdefault(name, found[name])
    return groups


def _carried(frame: types.FrameType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the names of `Liveness.carried`, where the inner loops that surely run are known to run."""
    found = liveness.at(frame.f_code, frame.f_lasti)
    names = found.carried()
    if names == found.carried(found.inner_loops):  # no name depends on it
        return names
    return found.carried(known_items.running_loops(found, frame))


def carried_if_an_inner_loop_is_empty(frame: types.FrameType | None) -> frozenset[str]:
    """Returns the names in the first group of `of_frames` that a following body reads only if a loop inside it runs no time.

    For example `loss` in `for micro_step in range(n): loss = ...`, read after it, where `n` changes from step to step.
    """
    names: set[str] = set()
    for one in loop_frames(frame):
        found = liveness.at(one.f_code, one.f_lasti)
        names |= {*_carried(one)[0]} - {*found.carried(found.inner_loops)[0]}
    return frozenset(names)


def assigned_in_loop(frame: types.FrameType) -> dict[str, Any]:
    """Returns the locals that a `for` statement carries and that its body assigns."""
    found = {}
    for one in loop_frames(frame):
        names, _ = _carried(one)
        stored = bytecode.stored_in_for(one.f_code, one.f_lasti)
        found |= {name: one.f_locals[name] for name in names if name in stored and name in one.f_locals}
    return found


def script_globals(frame: types.FrameType | None) -> dict[str, Any]:
    """Returns the script's globals that its functions use."""
    script = vars(sys.modules["__main__"])
    while frame is not None:
        if frame.f_globals is script and frame.f_code.co_name == "<module>":
            names = liveness.names_read(frame.f_code)
            return {name: script[name] for name in names if name in script and not name.startswith("__")}
        frame = frame.f_back
    return {}


def release_locals(frames: list[types.FrameType]) -> None:
    """Empties the dicts that `f_locals` left in frames of functions: before Python 3.13 they keep this step's tensors alive.

    A dict that is referenced elsewhere (`locals()`, a debugger) is not changed.
    """
    if sys.version_info >= (3, 13):
        return
    for frame in frames:
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            held = frame.f_locals
            if sys.getrefcount(held) == _HELD_BY_FRAME:
                held.clear()
