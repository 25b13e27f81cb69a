"""What a user's loop holds outside of `Run`: live locals, globals, and the attributes of the user's own objects."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from samebits.train.reach import liveness
from samebits.train.reach.leaves import PLAIN, Leaves
from samebits.train.reach.walk import Walk, is_foreign


def take(
    frame: types.FrameType | None, objects: dict[str, Any], loader: Any = None, *, at_exit: bool = False
) -> dict[str, Leaves]:
    """Components of what the loop in `frame` holds. Bounded; never raises for a user's object.

    `scalars`: live locals that are plain values; liveness alone proves that a following body reads them.
    `locals`: the other live locals, the script's globals, and the attributes of `objects` and of `loader` (only the
    iterator holds it, whether or not a variable still names it).
    `locals_at_exit`: locals that only the code behind the loop reads: state where the loop ends, nowhere else.
    """
    carried, behind = ({}, {}) if frame is None else _of_frames(frame)
    scalars, others, exits = Walk(), Walk(), Walk()
    others.skip(objects)
    for name, value in sorted(carried.items()):
        (scalars if type(value) in PLAIN else others).value(name, value, 0)
    for name, value in sorted(_globals(frame).items()):
        if name not in carried:
            others.value(name, value, 0)
    if loader is not None:
        others.value(_name_of(loader, frame), loader, 0)
    for name, value in objects.items():
        others.value(name, value, 0)
    taken = {"scalars": scalars.leaves(), "locals": others.leaves()}
    if at_exit:
        for name, value in sorted(behind.items()):
            exits.value(name, value, 0)
        taken["locals_at_exit"] = exits.leaves()
    return taken


def _name_of(loader: Any, frame: types.FrameType | None) -> str:
    names = [] if frame is None else [name for name, value in frame.f_locals.items() if value is loader]
    return names[0] if names else "loader"


def _of_frames(frame: types.FrameType | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two groups of `liveness.carried`, with values, of the loop and of the loops that drive it."""
    groups: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    while frame is not None and frame.f_back is not None and is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    while frame is not None:
        found = frame.f_locals
        for variables, names in zip(groups, liveness.carried(frame.f_code, frame.f_lasti), strict=True):
            for name in names:
                if name in found:
                    variables.setdefault(name, found[name])
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            break
        frame = frame.f_back  # a generator of the user's around the loop: its consumer carries locals, too
    return groups


def _globals(frame: types.FrameType | None) -> dict[str, Any]:
    """The script's globals that its functions use."""
    script = vars(sys.modules["__main__"])
    while frame is not None:
        if frame.f_globals is script and frame.f_code.co_name == "<module>":
            names = liveness.names_read(frame.f_code)
            return {name: script[name] for name in names if name in script and not name.startswith("__")}
        frame = frame.f_back
    return {}
