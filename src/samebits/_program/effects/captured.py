"""Hashes of a function's captured values around the first elements: they find what reading missed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

from samebits._objects.parts import closure_of, contents, defaults_of, globals_of, nearest_first
from samebits._objects.snapshot import Snapshot
from samebits._program.effects.reading import Reading

REACHED = 2000
"""Objects that are noted where code is not read."""


def snapshot(reading: Reading) -> dict[str, int]:
    looking = Snapshot(reading.once)
    hashes = {}
    for name, namespace in reading.globals.items():
        variable = name.rpartition(".")[2]
        hashes[name] = 0 if variable in reading.once else looking.at(namespace.get(variable))
    for name, cell in reading.cells.items():
        hashes[name] = looking.at(contents(cell))
    for name, found in reading.state.items():
        if name not in hashes and name.rpartition(".")[2] not in reading.once:
            hashes[name] = looking.at(found)
    return hashes


def note_reachable(reading: Reading, function: Any) -> None:
    """Notes all that the code may name: for a function that was not read to its end."""
    start = [(getattr(function, "__qualname__", "self"), function)]
    for name, found in nearest_first(start, functools.partial(_named_by, reading), most=REACHED):
        reading.keep(name, found)


def _named_by(reading: Reading, name: str, found: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(found, functools.partial):
        yield from ((name, one) for one in (found.func, *found.args, *found.keywords.values()))
    elif isinstance(found, MethodType):
        yield from (("self", found.__self__), (name, found.__func__))
    elif reading.is_library(found):
        return
    elif isinstance(found, FunctionType):
        for one, held in globals_of(found):
            reading.globals[one] = found.__globals__
            yield one, held
        for one, cell in closure_of(found):
            reading.cells[one] = cell
            yield one, contents(cell)
        yield from defaults_of(found)
    elif not isinstance(found, ModuleType):
        yield type(found).__name__, type(found)
        yield from ((f"{name}.{one}", part) for one, part in list(getattr(found, "__dict__", {}).items()))


def changed(before: dict[str, int], after: dict[str, int]) -> list[str]:
    return [name for name, value in before.items() if after.get(name) != value]
