"""The error for a value that cannot be saved: its path, its kind, and the cure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from samebits.errors import UnsavableStateError

PLAIN = (bool, int, float, str, bytes, tuple, list, dict, set)


def unsavable(path: Sequence[Any], value: Any, what: str | None = None) -> UnsavableStateError:
    """Returns the error for `value` at `path`: `callbacks[0]["fn"] is a function, ... Cure.`"""
    return UnsavableStateError(
        f"{render(path)} is {what or _what(value)}. A commit holds plain values, dense tensors and NumPy arrays, "
        f"and never pickles. {_cure(value)}"
    )


def render(path: Sequence[Any]) -> str:
    """Returns `path` as Python: the first key bare, the others as subscripts."""
    if not path:
        return "state"
    return f"{path[0]}" + "".join(f"[{key!r}]" for key in path[1:]).replace("['", '["').replace("']", '"]')


def _what(value: Any) -> str:
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType):
        return f"a function ({value.__qualname__})"
    if isinstance(value, type):
        return f"a class ({value.__qualname__})"
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}"


def _cure(value: Any) -> str:
    if isinstance(value, torch.Generator):
        return "Save its get_state() instead."
    if isinstance(value, random.Random):
        return "Save its getstate() instead."
    if isinstance(value, np.random.Generator):
        return "Save its bit_generator.state instead."
    if isinstance(value, torch.Tensor):
        return "Save plain dense tensors instead, for example its to_dense(), or the tensors it is made of."
    if isinstance(value, np.ndarray):
        return "Save it as a plain numeric array, or as a list."
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType | type | ModuleType):
        return "Leave it out of the state_dict, or save a name and look it up in load_state_dict."
    if hasattr(value, "state_dict"):
        return "Save its state_dict() instead."
    for kind in PLAIN:
        if isinstance(value, kind) and type(value) is not kind:
            return f"Convert it to a plain {kind.__name__}."
    return "Leave it out of the state_dict, or save the plain values it is made of."
