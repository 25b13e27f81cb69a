"""Hashes of objects that tell if they are still as they were: by content, as far as the bounds allow."""

from __future__ import annotations

import functools
import logging
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
import xxhash

from samebits import _digest as digest
from samebits._inspect.library_code import LIBRARIES, is_installed, root
from samebits._objects.parts import IMMUTABLE
from samebits._objects.rng_states import RESTORABLE

DEEP, ITEMS, BYTES, VALUES = 4, 2000, 1 << 20, 20_000
"""Bounds of the look: levels, (last) items of each container, bytes of an array (its ends), values in all."""


class Snapshot:
    """Hashes of objects, as far as the bounds allow."""

    def __init__(self, passed_over: set[str]) -> None:
        """`passed_over`: attributes that do not count."""
        self._passed_over = passed_over
        self._left = VALUES

    def at(self, found: Any, above: tuple[int, ...] = ()) -> int:
        self._left -= 1
        if isinstance(found, bool | int | float | complex | str | bytes | type(None)):
            return digest.leaf(found)
        if isinstance(found, IMMUTABLE):
            return hash(repr(found))
        if id(found) in above or len(above) > DEEP or self._left < 0:
            return 1
        if isinstance(found, RESTORABLE):  # set for each call, and put back
            return 2
        if isinstance(found, torch.Tensor):
            return _tensor(found)
        if isinstance(found, np.ndarray):
            return _array(found)
        above = (*above, id(found))
        if isinstance(found, dict):
            last = [item for item in list(found.items())[-ITEMS:] if item[0] not in self._passed_over]
            return _several(type(found), len(last), [self.at(part, above) for item in last for part in item])
        if isinstance(found, list | tuple):
            return _several(type(found), len(found), [self.at(part, above) for part in found[-ITEMS:]])
        if isinstance(found, set | frozenset):
            hashed = sorted(self.at(part, above) for part in list(found)[:ITEMS])
            return _several(type(found), len(found), hashed)
        state = _state_of(found)
        return _several(type(found), id(found), [] if state is None else [self.at(state, above)])


def _state_of(found: Any) -> Any:
    """Returns plain values that tell if an object is still as it was.

    Of its class only what is known to be free of effects is called.
    """
    if isinstance(found, type | ModuleType | FunctionType):
        return None
    if root(type(found).__module__) == "_io":
        return None if found.closed or not found.seekable() else found.tell()
    if isinstance(found, logging.Logger):  # it keeps which levels are enabled
        return None
    own = getattr(found, "__dict__", None)
    if hasattr(type(found), "__dict__") and isinstance(own, dict):
        parts = {name: one for name, one in own.items() if not _is_lazy(found, name)}
        return _without_draws(found, parts) or _listed(found)
    return _listed(found)


def _without_draws(found: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """Returns the attributes without generators; of a library's transform without its last draws."""
    parts = {name: one for name, one in parts.items() if not isinstance(one, RESTORABLE)}
    kind = type(found)
    if not is_installed(root(kind.__module__)) or not _has_generator(found):
        return parts
    return {name: one for name, one in parts.items() if _may_hold_transforms(one)}


def _has_generator(found: Any) -> bool:
    tables = [vars(found), *(vars(base) for base in type(found).__mro__)]
    return any(isinstance(one, RESTORABLE) for table in tables for one in table.values())


def _may_hold_transforms(one: Any, depth: int = 0) -> bool:
    """Returns True for objects that no basic library has made, and for containers that hold one."""
    if isinstance(one, dict | list | tuple):
        parts = list(one.values() if isinstance(one, dict) else one)[:ITEMS]
        return depth < DEEP and any(_may_hold_transforms(part, depth + 1) for part in parts)
    return root(type(one).__module__) not in LIBRARIES


def _is_lazy(found: Any, name: str) -> bool:
    """Returns True for what a `cached_property` has kept: it is the same in every process."""
    return isinstance(getattr(type(found), name, None), functools.cached_property)


def _listed(found: Any) -> Any:
    """Returns the last items of a container that is no list (deque, `array.array`, bytearray), or None."""
    if type(found).__module__ in ("collections", "array", "builtins") and hasattr(type(found), "__len__"):
        return list(found)[-ITEMS:]
    return None


def _array(found: np.ndarray) -> int:
    if found.dtype.hasobject:
        return hash((found.shape, id(found)))
    if found.nbytes > BYTES:
        flat = found.reshape(-1) if found.flags.c_contiguous else found[:1]
        few = BYTES // (2 * max(1, found.itemsize))
        found = np.concatenate([flat[:few].reshape(-1), flat[-few:].reshape(-1)])
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(found).tobytes(), found.ndim)


def _tensor(found: torch.Tensor) -> int:
    version = 0 if found.is_inference() else found._version
    if found.layout is not torch.strided or found.device.type != "cpu":
        return version
    flat = found.detach().reshape(-1)[: BYTES // max(1, found.element_size())].contiguous()
    held = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return hash((version, xxhash.xxh3_64_intdigest(held)))


def _several(kind: type, number: int, parts: list[int]) -> int:
    return hash((kind.__qualname__, number, tuple(parts)))
