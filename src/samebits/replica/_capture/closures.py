"""The objects that a step reaches without an argument, by the names in its code: names of its constants."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from samebits._inspect.user_code import owner_of_module
from samebits._objects.parts import closure_of, contents, defaults_of, globals_of, nearest_first
from samebits.replica._analysis.memory import ByteRange
from samebits.replica._analysis.storage_layout import constant_place

_MAX_OBJECTS = 20_000
"""Most objects to visit, nearest first: a step's tensors are near, a million samples are not read."""
_WITHOUT_TENSORS = (type, ModuleType, str, bytes, int, float, complex, type(None))
_PATH = re.compile(r"[\w-]+(\.[\w-]+)*")
"""A key that can be a part of a path."""


class Closure:
    """Tensors and generators that a step reaches, by shortest path: `model.fc.weight`, `self.scales.0`."""

    def __init__(self, step: Any, arguments: Mapping[str, Any]) -> None:
        self._names: dict[int, str] = {}
        self._places: dict[ByteRange, str] = {}
        self._generators: dict[int, str] = {}
        """By the address of the C++ object: a graph has another Python object of it."""
        self._seen: dict[int, Any] = {}
        """References that are kept, so that no other object gets the identity of one that is named."""
        self.optimizers: list[tuple[str, torch.optim.Optimizer]] = []
        start = [*_variables(step), *arguments.items()]
        reached = nearest_first(start, _children, most=_MAX_OBJECTS, leaves=_WITHOUT_TENSORS, seen=self._seen)
        for name, one in reached:
            self._note(name, one)
            if isinstance(one, torch.Generator):
                self._generators.setdefault(one._cdata, name)  # type: ignore[attr-defined]
            elif isinstance(one, torch.optim.Optimizer):
                self.optimizers.append((name, one))
        self._seen[id(step)] = step
        for name, optimizer in self.optimizers:
            for index, (parameter, state) in enumerate(optimizer.state.items()):
                own = self._names.get(id(parameter), str(index))
                for key, one in state.items():
                    self._note(f"{name}.{own}.{key}", one)

    def objects(self) -> Iterator[Any]:
        """Yields all objects that the step reaches, each once."""
        yield from self._seen.values()

    def name_of(self, held: Any) -> str | None:
        """Returns the path of a generator, a tensor, or one of the same bytes; None: it is not reached."""
        if isinstance(held, torch.Generator):
            return self._generators.get(held._cdata)  # type: ignore[attr-defined]
        return self._names.get(id(held)) or self._places.get(constant_place(held))

    def _note(self, name: str, tensor: Any) -> None:
        if not isinstance(tensor, torch.Tensor) or isinstance(tensor, DTensor):
            return
        self._names.setdefault(id(tensor), name)
        if tensor.layout is torch.strided and not tensor.is_nested:
            self._places.setdefault(constant_place(tensor), name)


def _children(name: str, item: Any) -> Iterator[tuple[str, Any]]:
    return ((f"{name}.{key}", child) for key, child in _parts(item))


def _parts(item: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(item, torch.Tensor):
        if isinstance(item, DTensor):
            yield "local", item.to_local()
        if item.is_leaf and item.grad is not None:
            yield "grad", item.grad
    elif isinstance(item, dict):
        yield from ((str(key), value) for key, value in item.items() if _PATH.fullmatch(str(key)))
    elif isinstance(item, (list, tuple)):
        yield from ((str(index), value) for index, value in enumerate(item))
    elif isinstance(item, nn.Module):
        yield from (*item._parameters.items(), *item._buffers.items(), *item._modules.items())
        yield from ((key, value) for key, value in vars(item).items() if not key.startswith("_"))
    elif isinstance(item, (FunctionType, MethodType, functools.partial)):
        if is_followed(item):
            yield from _variables(item)
    elif not isinstance(item, torch.optim.Optimizer) and hasattr(item, "__dict__"):
        yield from ((key, value) for key, value in vars(item).items() if _PATH.fullmatch(key))


def _variables(function: Any) -> Iterator[tuple[str, Any]]:
    """Yields what a function finds by name: free variables, globals, defaults, `self`, bound arguments."""
    if isinstance(function, functools.partial):
        bound = inspect.signature(function.func).bind_partial(*function.args, **function.keywords)
        yield from bound.arguments.items()
        yield from _variables(function.func)
        return
    if not isinstance(function, (FunctionType, MethodType)):
        yield "self", function
        for name in ("__call__", "forward"):
            method = getattr(type(function), name, None)
            if isinstance(method, FunctionType) and is_followed(method):
                yield from _variables(method)
        return
    if isinstance(function, MethodType):
        yield "self", function.__self__
    function = inspect.unwrap(function)
    yield from ((name, contents(cell)) for name, cell in closure_of(function))
    yield from globals_of(function)
    yield from defaults_of(function)


def is_followed(value: Any) -> bool:
    """Returns True for a function or class that may reach the user's objects: none of torch, NumPy, ours."""
    return owner_of_module(str(getattr(value, "__module__", ""))) not in ("samebits", "framework")
