"""The method of a walk (`reachable`) for values of each type."""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from samebits._inspect.library_objects import reader_of
from samebits._inspect.rng_states import GENERATORS
from samebits._inspect.user_code import is_user_type

_SKIPPED = (types.ModuleType, types.BuiltinFunctionType, type)
_ITERATORS = (
    types.GeneratorType,
    _BaseDataLoaderIter,
    *{type(iter(empty)) for empty in ([], (), range(0), {}, {}.values(), {}.items(), set(), "")},
    enumerate,
    zip,
    map,
)


@functools.lru_cache(maxsize=4096)
def action_of(kind: type) -> str | None:
    """The method of `Walk` for values of a type; None: they are not looked at."""
    if issubclass(kind, _SKIPPED):
        return None
    for bases, action in _ACTIONS:
        if issubclass(kind, bases):
            return action
    if is_user_type(kind):
        return "attributes"
    if issubclass(kind, torch.utils.data.Sampler):
        return "sampler"
    if issubclass(kind, Iterator) and kind.__module__.startswith("samebits.data"):
        return "iterator"
    if issubclass(kind, torch.optim.Optimizer) or kind.__module__.startswith("samebits"):
        return None
    return "stateful" if hasattr(kind, "state_dict") else None


@functools.lru_cache(maxsize=4096)
def thorough_action_of(kind: type) -> str | None:
    """The same for a thorough walk."""
    if issubclass(kind, type):
        return "user_class"
    return "library" if reader_of(kind) is not None and not is_user_type(kind) else action_of(kind)


_ACTIONS: tuple[tuple[Any, str], ...] = (
    (torch.Tensor, "tensor"),
    ((np.ndarray, np.generic), "array"),
    (GENERATORS, "generator"),
    (types.FunctionType, "function"),
    (types.MethodType, "method"),
    (torch.utils.data.DataLoader, "loader"),
    (dict, "mapping"),
    ((list, tuple), "sequence"),
    (collections.deque, "ends"),
    ((set, frozenset), "set"),
    (itertools.count, "counter"),
    (_ITERATORS, "iterator"),
    (torch.nn.Module, "module"),
    ((types.SimpleNamespace, argparse.Namespace), "attributes"),
)
