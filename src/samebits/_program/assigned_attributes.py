"""Attributes of modules and classes that user code assigns: `functional.relu = f`, `settings.scale = 2.0`."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from samebits._inspect.user_code import is_user_type
from samebits._objects.hashes import PLAIN
from samebits._objects.structure import described
from samebits._program.bytecode import instructions
from samebits._program.functions import UserFunctions

_NAMES = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


class AssignmentTarget(NamedTuple):
    """The target of an assignment `name.inner.attribute = ...`."""

    name: str
    inner: tuple[str, ...]
    attribute: str


def values(frames: list[types.FrameType], program: UserFunctions) -> dict[str, Any]:
    """Returns the values of these attributes by path in the code; of functions and objects their names."""
    found: dict[str, Any] = {}
    for code, variables in _scopes(frames, program):
        for target in _targets(code):
            holder = _holder(target, variables)
            if holder is not None and target.attribute in vars(holder):
                value = vars(holder)[target.attribute]
                path = ".".join((target.name, *target.inner, target.attribute))
                if type(value) not in PLAIN:
                    found[path] = described(value)
                elif not (isinstance(holder, type) and is_user_type(holder)):  # the walk reads those
                    found[path] = value
    return found


def _scopes(
    frames: list[types.FrameType], program: UserFunctions
) -> Iterator[tuple[types.CodeType, Mapping[str, Any]]]:
    """Yields the user's functions, each with the variables that it sees."""
    for frame in frames:
        yield frame.f_code, {**frame.f_globals, **frame.f_locals}
    functions = [code for codes in program.functions.values() for code in codes]
    for code, module in program.of_modules(functions):
        yield code, vars(module)


@functools.lru_cache(maxsize=4096)
def _targets(code: types.CodeType) -> tuple[AssignmentTarget, ...]:
    if "STORE_ATTR" not in {dis.opname[number] for number in code.co_code[::2]}:
        return ()
    items = instructions(code)
    together: dict[Any, list[dis.Instruction]] = {}
    for item in items:
        together.setdefault(_span(item)[0], []).append(item)
    found = [_target(item, together[_span(item)[0]]) for item in items if item.opname == "STORE_ATTR"]
    return tuple(target for target in found if target is not None)


def _target(store: dis.Instruction, items: Sequence[dis.Instruction]) -> AssignmentTarget | None:
    """Returns the names before the attribute: those loaded within the source text of the store.

    `items`: those whose text begins where that of the store does.
    """
    start, end = _span(store)
    if start is None:
        return None
    within = [item for item in items if _span(item)[1] <= end]
    names = {str(item.argval) for item in within if item.opname.startswith(_NAMES)}
    inner = {_span(item)[1]: str(item.argval) for item in within if item.opname.startswith(_ATTRIBUTES)}
    others = {item.opname for item in within if not item.opname.startswith((*_NAMES, *_ATTRIBUTES))}
    if len(names) != 1 or others - {"STORE_ATTR", "COPY", "SWAP", "PUSH_NULL"}:
        return None
    inner.pop(end, None)  # `name.attribute += 1` loads it, too
    return AssignmentTarget(names.pop(), tuple(inner[at] for at in sorted(inner)), str(store.argval))


def _span(item: dis.Instruction) -> tuple[Any, Any]:
    at = item.positions
    if at is None or at.lineno is None or at.col_offset is None:
        return None, None
    return (at.lineno, at.col_offset), (at.end_lineno, at.end_col_offset)


def _holder(target: AssignmentTarget, variables: Mapping[str, Any]) -> Any:
    """Returns the module or the class that has the attribute; None for anything else."""
    value = variables.get(target.name)
    for name in target.inner:
        if not isinstance(value, types.ModuleType | type):
            return None
        value = vars(value).get(name)
    return value if isinstance(value, types.ModuleType | type) else None
