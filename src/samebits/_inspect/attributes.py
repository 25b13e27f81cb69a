"""The named values of an object: attributes, slots, and the defaults of a function."""

from __future__ import annotations

import functools
import types
from contextlib import suppress
from typing import Any

import torch

_MODULE_OWN = frozenset(vars(torch.nn.Module()))
_OPTIMIZER_OWN = frozenset(
    {"defaults", "param_groups", "state", "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured"}
)


def attributes_of(value: Any) -> dict[str, Any]:
    """Attributes of an object, its slots included, as they lie: no property, `__getattr__` or `__getattribute__` runs."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for name, slot in _slots(type(value)).items():
        with suppress(AttributeError):  # never assigned
            found[name] = slot.__get__(value)
    return found


@functools.lru_cache(maxsize=4096)
def _slots(kind: type) -> dict[str, types.MemberDescriptorType]:
    return {
        name: slot
        for base in reversed(kind.__mro__)
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType) and name != "__dict__"
    }


@functools.lru_cache(maxsize=4096)
def own_names(kind: type) -> frozenset[str]:
    """Attributes of torch's own in instances of a user's subclass."""
    if issubclass(kind, torch.nn.Module):
        return _MODULE_OWN
    return _OPTIMIZER_OWN if issubclass(kind, torch.optim.Optimizer) else frozenset()


def defaults_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    """The parameters of a function that have a default, each with it."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return [*zip(names, values, strict=True), *(function.__kwdefaults__ or {}).items()]
