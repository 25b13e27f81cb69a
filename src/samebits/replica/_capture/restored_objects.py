"""Restores the objects that a step closes over: a capture runs the step to read it, and must leave no trace."""

from __future__ import annotations

import inspect
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from samebits._inspect import bytecode
from samebits._inspect.rng_states import RESTORABLE, restore_state, state_of
from samebits.random._process import generator_states
from samebits.replica._capture.closures import is_followed


@contextmanager
def restore_generators(objects: Iterable[Any]) -> Iterator[None]:
    """Restores the generators of the process and those among `objects`.

    Once, at the end: they advance between the runs as other ranks, so that a draw of Python's is not taken for equal.
    """
    states = [(one, state_of(one)) for one in objects if isinstance(one, RESTORABLE)]
    with generator_states.preserved():
        try:
            yield
        finally:
            for one, state in states:
                restore_state(one, state)


@contextmanager
def restore_objects(objects: Iterable[Any]) -> Iterator[None]:
    """Restores the contents of `objects`: `.grad`, modes and attributes, optimizer state, counters, variables of functions."""
    with ExitStack() as stack:
        seen: set[int] = set()
        for one in objects:
            for part in _parts(one):
                if id(part) not in seen and (put := _restorer(part)) is not None:
                    seen.add(id(part))
                    stack.callback(put)
        yield


def _parts(one: Any) -> Iterator[Any]:
    """Yields an object and the parts that belong to it alone: the tables of a module, the states of an optimizer, cells
    and globals.
    """
    if isinstance(one, MethodType):
        one = one.__func__
    yield one
    yield from _methods(one)
    if isinstance(one, nn.Module):
        yield from (value for value in vars(one).values() if isinstance(value, dict))
    elif isinstance(one, torch.optim.Optimizer):
        yield one.state
        yield from one.state.values()
        yield one.param_groups
        for group in one.param_groups:
            yield group
            yield group["params"]
            yield from group["params"]
    elif isinstance(one, FunctionType):  # a decorated function has the original one
        yield from one.__closure__ or ()
        if one is not (inner := inspect.unwrap(one)):
            yield from _parts(inner)


def _methods(one: Any) -> Iterator[FunctionType]:
    """Yields the functions of an object's class, which may set globals; none of a library's classes."""
    for kind in type(one).__mro__:
        if is_followed(kind):
            yield from (value for value in vars(kind).values() if isinstance(value, FunctionType))


def _restorer(one: Any) -> Callable[[], None] | None:
    """Returns a function that restores an object; None for an object without content."""
    if isinstance(one, torch.Tensor):
        return _tensor(one)
    if isinstance(one, (dict, set)):
        return _refill(one, one.update, dict(one) if isinstance(one, dict) else set(one))
    if isinstance(one, (list, deque)):
        return _refill(one, one.extend, list(one))
    if isinstance(one, CellType):
        return _cell(one)
    if isinstance(one, FunctionType):
        return _globals(one)
    if isinstance(one, random.Random) or not hasattr(one, "__dict__"):
        return None
    return _attributes(one)


def _tensor(one: torch.Tensor) -> Callable[[], None] | None:
    if not one.is_leaf:
        return None
    grad, required = one.grad, one.requires_grad

    def put() -> None:
        if one.grad is not grad:
            one.grad = grad
        if one.is_leaf and one.requires_grad != required:
            one.requires_grad_(required)

    return put


def _refill(one: Any, fill: Callable[[Any], None], held: Any) -> Callable[[], None]:
    def put() -> None:
        if not _same(one, held):
            one.clear()
            fill(held)

    return put


def _same(one: Any, held: Any) -> bool:
    """Returns True if a container holds these very objects: unchanged containers are not touched."""
    if isinstance(held, dict):
        return one.keys() == held.keys() and all(one[key] is value for key, value in held.items())
    if isinstance(held, set):
        return one == held
    return len(one) == len(held) and all(a is b for a, b in zip(one, held, strict=True))


def _cell(one: CellType) -> Callable[[], None] | None:
    try:
        held = one.cell_contents
    except ValueError:  # a variable that is set later
        return None
    return lambda: _setter(one, "cell_contents")(held)


def _globals(one: FunctionType) -> Callable[[], None]:
    """Returns a function that restores the globals of its module that a function may set."""
    table = one.__globals__
    held = {name: table[name] for name in bytecode.names(one.__code__) if name in table}

    def put() -> None:
        for name, value in held.items():
            if table.get(name) is not value:
                table[name] = value

    return put


def _attributes(one: Any) -> Callable[[], None]:
    table, kind = vars(one), type(one)
    refill = _refill(table, table.update, dict(table))

    def put() -> None:
        if type(one) is not kind:  # fully_shard makes a module one of another class
            one.__class__ = kind
        refill()

    return put


def _setter(one: Any, name: str) -> Callable[[Any], None]:
    return lambda value: setattr(one, name, value)
