"""All values that a walk can read of a program between two steps: they name the state that a resume lost."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch

from samebits._inspect import structure
from samebits._inspect._program import carried_locals
from samebits._inspect.reachable import Walk
from samebits._inspect.tree import Leaves, plain


class _Thorough(Walk):
    most = 2000
    thorough = True


def take(frame: FrameType, objects: dict[str, Any], loader: Any) -> Leaves:
    """Returns the values that the loop in `frame` holds, how its modules are built, and the settings of the process."""
    frames = carried_locals.loop_frames(frame)
    carried, _ = carried_locals.of_frames(frame)
    held = {**carried_locals.script_globals(frame), **carried, **objects}
    walk = _Thorough()
    walk.skip(objects)
    for name, value in sorted(held.items()):
        walk.value(name, value, 0)
    if loader is not None:
        walk.value(carried_locals.name_of(loader, frames), loader, 0)
    carried_locals.release_locals(frames)
    found = walk.leaves().by_name()
    modules = [(name, value) for name, value in sorted(held.items()) if isinstance(value, torch.nn.Module)]
    for path, parts in {**structure.of_modules(modules), "": structure.of_process()}.items():
        found |= {f"{path}.{name}".lstrip("."): plain(repr(value)) for name, value in parts.items()}
    return Leaves(tuple(found), b"".join(found.values()))
