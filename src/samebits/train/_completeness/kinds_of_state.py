"""The kinds of objects for the check: per class the method that reads an object, and its name in errors."""

from __future__ import annotations

import functools
import inspect
import io
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits import _digest as digest
from samebits._dtensors import local
from samebits._inspect.user_code import (
    is_output_package,
    is_table,
    is_user_type,
    keeps_attributes,
    may_hold_state,
)
from samebits._objects import walk
from samebits._objects.hashes import CONSTANTS, PLAIN, plain
from samebits._objects.parts import attributes_of, is_unreadable_iterator
from samebits._objects.rng_states import RESTORABLE
from samebits._objects.structure import described
from samebits.state._attributes import Attributes
from samebits.state._known_classes import HeldGenerators, is_known


@functools.lru_cache(maxsize=4096)
def action_of(kind: type) -> str | None:
    """Returns the name of the walk's method for values of a type; None if they are not read."""
    if issubclass(kind, torch.optim.Optimizer) and not is_user_type(kind):
        return "optimizer"
    is_ours = kind.__module__.startswith("samebits.") and walk.action_of(kind) == "attributes"
    if is_ours and not hasattr(kind, "__names_of_library__"):
        return "holder"
    if is_table(kind):
        return "table"
    action = walk.thorough_action_of(kind)
    if (action in {None, "library"} and is_unreadable_iterator(kind)) or issubclass(kind, io.TextIOWrapper):
        return "cursor"
    if action is None:
        output = is_output_package(kind.__module__)
        return "read_attributes" if output else "installed" if keeps_attributes(kind) else None
    return _OF_A_SNAPSHOT.get(action, action)


_OF_A_SNAPSHOT = {
    "attributes": "owned_attributes",
    "function": "function_and_attributes",
    "generator": "marked_generator",
    "iterator": "iterator_of_the_user",
    "loader": "loader_and_attributes",
    "module": "hooked_module",
    "tensor": "uncommitted_tensor",
    "array": "uncommitted_array",
}
"""The methods of `StateSnapshot` that do more than those of any walk."""


class Role(NamedTuple):
    """The words of the check for an object."""

    group: str
    """"plain", "container", "iterator", "class", "library" (no class of the user's) or "object"."""
    name: str
    """The name of its class; of a class its own."""
    saves: bool
    """True if it has a state_dict."""
    known: bool
    """True if `samebits.state` has an adapter for its class."""


def role(value: Any) -> Role:
    kind = type(value)
    group = "object" if is_user_type(kind) else "library"
    if kind in PLAIN or isinstance(value, (*CONSTANTS, torch.Tensor, np.ndarray, np.generic)):
        group = "plain"
    elif issubclass(kind, (dict, list, tuple, set, deque)):
        group = "container"
    group = "iterator" if hasattr(kind, "__next__") and not issubclass(kind, io.IOBase) else group
    if isinstance(value, type):
        return Role("class", value.__name__, False, False)
    saves = hasattr(kind, "state_dict") and hasattr(kind, "load_state_dict")
    return Role(group, kind.__name__, saves, is_known(kind))


def saved_whole(thing: Any) -> Any:
    """Returns the object that an adapter of samebits saves as a whole; None for other objects."""
    if isinstance(thing, HeldGenerators):
        return thing.target
    if type(thing).__module__.startswith("samebits.integrations."):
        return getattr(thing, "target", None)
    if isinstance(thing, Attributes) and (thing.saves_all or is_known(type(thing.target))):
        return thing.target
    return None


def objects_in(value: Any) -> list[tuple[str, Any]]:
    """Returns an object that may have state of its own, or those in a list, each with its index."""
    several = isinstance(value, list | tuple)
    parts = [(f"[{n}]", one) for n, one in enumerate(value)] if several else [("", value)]
    return [
        (index, one)
        for index, one in parts
        if not isinstance(one, tuple)
        and (isinstance(one, RESTORABLE) or may_hold_state(type(one)) or is_user_type(type(one)))
    ]


def named(value: Any) -> str:
    """Returns the name of a function or a class, or of an object's class."""
    return described(value) if isinstance(value, types.FunctionType | type) else type(value).__qualname__


def is_step(value: Any) -> bool:
    """Returns True for a step of `run.steps`, by its class name: the module of the class imports this one."""
    return type(value).__module__.startswith("samebits.") and type(value).__name__ == "Step"


def may_change(value: Any) -> bool:
    """Returns True if a global variable can hold state: modules, library classes and builtins cannot."""
    if isinstance(value, type):
        return is_user_type(value)
    return not isinstance(value, types.ModuleType | types.BuiltinFunctionType)


def is_users_own(value: Any) -> bool:
    own = torch.nn.Module | types.FunctionType | types.MethodType
    return isinstance(value, own) or is_user_type(type(value))


def inner(value: Any) -> Iterator[Any]:
    """Yields the value, the containers inside it, and the tensors in them."""
    for _, one, parts in digest.walk(value, parts_of=_containers):
        if parts is not None or isinstance(one, _HELD):
            yield one


_HELD = (list, tuple, deque, set, bytearray, np.ndarray, torch.Tensor)
MOST_ITEMS = 1024
"""Items of a saved sequence that are followed; of a longer one none is."""


def _containers(value: Any) -> digest.Parts | None:
    if isinstance(value, dict):
        return [pair for pair in value.items() if type(pair[1]) not in PLAIN]
    if isinstance(value, list | tuple | deque) and len(value) <= MOST_ITEMS:
        return [pair for pair in enumerate(value) if type(pair[1]) not in PLAIN]
    return None


def fields_of(value: Any) -> set[str]:
    return {*attributes_of(value), *_properties(type(value))}


@functools.lru_cache(maxsize=256)
def _properties(kind: type) -> list[str]:
    return [name for name in dir(kind) if isinstance(inspect.getattr_static(kind, name, None), property)]


def of_column(column: Any) -> bytes:
    """Returns the hash of a table's column; of texts and objects that of both ends."""
    if getattr(getattr(column, "dtype", None), "kind", "O") in "biufcmM":
        array = column.to_numpy()
        if array.dtype.kind != "O":
            return walk.of_array(array)
    ends = [*column.head(walk.ENDS).to_numpy(), *column.tail(walk.ENDS).to_numpy()]
    return plain([len(column), *(one if type(one) in PLAIN else str(one) for one in ends)])


def of_tensor(tensor: torch.Tensor) -> int:
    """Returns a tensor's address, equal for all its views; `-id(tensor)` if it is sparse, empty or lazy."""
    tensor = local(tensor)
    if tensor.layout is not torch.strided or tensor.numel() == 0 or torch.nn.parameter.is_lazy(tensor):
        return -id(tensor)
    return tensor.untyped_storage().data_ptr()
