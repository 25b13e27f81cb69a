"""What a user's loop holds outside of `Run`: live locals, globals, and the attributes of the user's own objects."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

from samebits.audit import liveness
from samebits.audit.leaves import PLAIN, Leaves
from samebits.audit.walk import Walk, is_foreign


def take(frame: types.FrameType | None, objects: dict[str, Any], loader: Any = None) -> Leaves:
    """Leaves of the live locals of `frame`, of the script's globals, and of the attributes of `objects`.

    `loader` is what the loop iterates over: only the iterator holds it, whether or not a variable still names it.
    Bounded: at most walk.MAX_LEAVES, containers and large arrays by samples. Never raises for a user's object.
    """
    walk = Walk()
    walk.skip(objects)
    scalars = scalar_names(frame)
    for name, value in sorted(_variables(frame).items()):
        if name not in scalars:
            walk.value(name, value, 0)
    if loader is not None:
        walk.value(_name_of(loader, frame), loader, 0)
    for name, value in objects.items():
        walk.value(name, value, 0)
    return walk.leaves()


def _name_of(loader: Any, frame: types.FrameType | None) -> str:
    names = [] if frame is None else [name for name, value in frame.f_locals.items() if value is loader]
    return names[0] if names else "loader"


def take_scalars(frame: types.FrameType) -> Leaves:
    """Leaves of the live locals that are plain values: liveness alone proves that a following body reads them."""
    walk = Walk()
    found = _of_frames(frame, 0)
    for name in sorted(scalar_names(frame)):
        walk.value(name, found[name], 0)
    return walk.leaves()


def scalar_names(frame: types.FrameType | None) -> frozenset[str]:
    """The live locals of `frame` that are plain values."""
    return frozenset(name for name, value in _of_frames(frame, 0).items() if type(value) in PLAIN)


def take_at_exit(frame: types.FrameType) -> Leaves:
    """Leaves of the locals that only the code behind the loop reads: state where the loop ends, and nowhere else."""
    walk = Walk()
    for name, value in sorted(_of_frames(frame, 1).items()):
        walk.value(name, value, 0)
    return walk.leaves()


def _variables(frame: types.FrameType | None) -> dict[str, Any]:
    variables = _of_frames(frame, 0)
    script = vars(sys.modules["__main__"])
    for name in _global_names(frame, script):
        if name in script and not name.startswith("__"):
            variables.setdefault(name, script[name])
    return variables


def _of_frames(frame: types.FrameType | None, group: int) -> dict[str, Any]:
    """The variables of one group of `liveness.carried`, of the loop and of the loops that drive it."""
    variables: dict[str, Any] = {}
    while frame is not None and frame.f_back is not None and is_foreign(frame.f_code.co_filename):
        frame = frame.f_back
    while frame is not None:
        found = frame.f_locals
        for name in liveness.carried(frame.f_code, frame.f_lasti)[group]:
            if name in found:
                variables.setdefault(name, found[name])
        if not frame.f_code.co_flags & inspect.CO_GENERATOR:
            break
        frame = frame.f_back  # a generator of the user's around the loop: its consumer carries locals, too
    return variables


def _global_names(frame: types.FrameType | None, script: dict[str, Any]) -> frozenset[str]:
    """Names of the script's globals that its functions use."""
    while frame is not None:
        if frame.f_globals is script and frame.f_code.co_name == "<module>":
            return liveness.names_read(frame.f_code)
        frame = frame.f_back
    return frozenset()
