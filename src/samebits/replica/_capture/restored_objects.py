"""Restores the objects that a step closes over: a capture runs the step, and must leave no trace."""

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

from samebits._inspect import code_names
from samebits._objects.keepers import save_items, save_variables
from samebits._objects.rng_states import RESTORABLE, restore_state, state_of
from samebits.random._process import generator_states
from samebits.replica._capture.closures import is_followed


@contextmanager
def restore_generators(objects: Iterable[Any]) -> Iterator[None]:
    """Restores the generators of the process and those among `objects`.

    Once, at the end: they advance between the runs as other ranks, so that Python's draws are not equal.
    """
    states = [(one, state_of(one)) for one in objects if isinstance(one, RESTORABLE)]
    with generator_states.preserve_states():
        try:
            yield
        finally:
            for one, state in states:
                restore_state(one, state)


@contextmanager
def restore_objects(objects: Iterable[Any]) -> Iterator[None]:
    """Restores `objects`: `.grad`, modes, attributes, optimizer state, counters, functions' variables."""
    with ExitStack() as stack:
        seen: set[int] = set()
        for one in objects:
            for part in _parts(one):
                if id(part) not in seen and (put := _restorer(part)) is not None:
                    seen.add(id(part))
                    stack.callback(put)
        yield


def _parts(owner: Any) -> Iterator[Any]:
    """Yields an object and its own parts: a module's tables, an optimizer's states, cells and globals."""
    if isinstance(owner, MethodType):
        owner = owner.__func__
    yield owner
    yield from _methods(owner)
    if isinstance(owner, nn.Module):
        yield from (value for value in vars(owner).values() if isinstance(value, dict))
    elif isinstance(owner, torch.optim.Optimizer):
        yield owner.state
        yield from owner.state.values()
        yield owner.param_groups
        for group in owner.param_groups:
            yield group
            yield group["params"]
            yield from group["params"]
    elif isinstance(owner, FunctionType):  # a decorated function has the original one
        yield from owner.__closure__ or ()
        if owner is not (inner := inspect.unwrap(owner)):
            yield from _parts(inner)


def _methods(owner: Any) -> Iterator[FunctionType]:
    """Yields the functions of an object's class, which may set globals; none of a library's classes."""
    for kind in type(owner).__mro__:
        if is_followed(kind):
            yield from (value for value in vars(kind).values() if isinstance(value, FunctionType))


def _restorer(value: Any) -> Callable[[], None] | None:
    """Returns a function that restores an object; None for an object without content."""
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (dict, set, list, deque)):
        return save_items(value)
    if isinstance(value, CellType):
        return _cell(value)
    if isinstance(value, FunctionType):
        table = value.__globals__
        return save_variables(table, table.__setitem__, tuple(code_names.names(value.__code__)))
    if isinstance(value, random.Random) or not hasattr(value, "__dict__"):
        return None
    return _attributes(value)


def _tensor(tensor: torch.Tensor) -> Callable[[], None] | None:
    if not tensor.is_leaf:
        return None
    grad, required = tensor.grad, tensor.requires_grad

    def put() -> None:
        if tensor.grad is not grad:
            tensor.grad = grad
        if tensor.is_leaf and tensor.requires_grad != required:
            tensor.requires_grad_(required)

    return put


def _cell(cell: CellType) -> Callable[[], None] | None:
    try:
        held = cell.cell_contents
    except ValueError:  # a variable that is set later
        return None
    return lambda: setattr(cell, "cell_contents", held)


def _attributes(owner: Any) -> Callable[[], None]:
    table, kind = vars(owner), type(owner)
    refill = save_items(table)

    def put() -> None:
        if type(owner) is not kind:  # fully_shard makes a module one of another class
            owner.__class__ = kind
        refill()

    return put
