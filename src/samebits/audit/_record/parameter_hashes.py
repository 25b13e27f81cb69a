"""Hashes of models and optimizers at every step: cached NumPy views of their tensors, hashed in place (about 0.4 us
each).

A plan holds as long as every mapping it was made of has the same objects in it, and every tensor its address and
shape; both are checked at each step, so `.data = ...`, `.to(...)`, new layers and new state are seen.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import xxhash

from samebits import _digest as digest
from samebits._inspect.tree import PLAIN, Leaves, leaf, of_nested, plain


class _TensorView(NamedTuple):
    """A tensor, and its bytes without a copy if that is possible (dense, on the CPU)."""

    tensor: torch.Tensor
    address: int
    shape: torch.Size
    view: Any
    """A NumPy array on the tensor's memory, or None."""
    seed: int


def _keep(tensor: torch.Tensor) -> _TensorView:
    view, address = None, 0
    if tensor.layout is torch.strided and tensor.device.type == "cpu" and tensor.numel():
        array = digest.array_of(tensor)
        address = tensor.data_ptr()
        view = array if array.ctypes.data == address else None
    return _TensorView(tensor, address, tensor.shape, view, digest.seed_of(tensor.dtype, tensor.shape))


def _hash_kept(views: list[_TensorView]) -> bytes | None:
    """Returns the hashes, or None if a tensor has moved (`.data = ...`, `.to(...)`, a resize)."""
    parts = []
    for tensor, address, shape, view, seed in views:
        if view is None:
            parts.append(leaf(tensor))
        elif tensor.data_ptr() != address or tensor.shape != shape:
            return None
        else:
            parts.append(xxhash.xxh3_64_digest(view, seed))
    return b"".join(parts)


class _Structure:
    """Mappings whose values must still be the same objects for a plan to hold."""

    def __init__(self) -> None:
        self._mappings: list[tuple[Mapping[Any, Any], tuple[Any, ...]]] = []

    def add(self, mapping: Mapping[Any, Any]) -> None:
        self._mappings.append((mapping, tuple(mapping.values())))

    def holds(self) -> bool:
        return all(
            len(mapping) == len(values) and all(map(operator.is_, mapping.values(), values))
            for mapping, values in self._mappings
        )


class ModelLeaves:
    """Parameters and buffers of modules, given by the prefix of their names ("" or "generator.")."""

    def __init__(self, modules: Mapping[str, torch.nn.Module]) -> None:
        self._modules = dict(modules)
        self._plan()

    def _plan(self) -> None:
        self._structure = _Structure()
        tensors: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]] = ({}, {})
        for prefix, module in self._modules.items():
            for part in module.modules():
                for mapping in (part._parameters, part._buffers, part._modules):
                    self._structure.add(mapping)
            for found, named in zip(
                tensors, (module.named_parameters(), module.named_buffers()), strict=True
            ):
                found.update((prefix + path, tensor) for path, tensor in named)
        self._names = tuple(tuple(found) for found in tensors)
        self._kept = tuple([_keep(tensor) for tensor in found.values()] for found in tensors)

    def take(self) -> tuple[Leaves, Leaves]:
        """Returns (parameters, buffers) as they are now."""
        if not self._structure.holds():
            self._plan()
        hashes = [_hash_kept(kept) for kept in self._kept]
        if None in hashes:
            self._plan()
            hashes = [_hash_kept(kept) for kept in self._kept]
        parameters, buffers = (Leaves(n, h or b"") for n, h in zip(self._names, hashes, strict=True))
        return parameters, buffers


class OptimizerLeaves:
    """Hyperparameters (learning rates first) and state of optimizers, given by the prefix of their names.

    Parameters are numbered as in the optimizer's `state_dict`.
    """

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self._optimizers = dict(optimizers)
        self._plan()

    def _plan(self) -> None:
        self._structure = _Structure()
        self._read: list[tuple[str, Mapping[str, Any], str]] = []
        self._groups: list[tuple[str, dict[str, Any], int]] = []
        self._checked: list[tuple[Mapping[str, Any], int]] = []
        tensors: dict[str, tuple[Mapping[str, Any], str, torch.Tensor]] = {}
        for prefix, optimizer in self._optimizers.items():
            numbers: dict[Any, int] = {}
            for number, group in enumerate(optimizer.param_groups):
                self._groups.append((f"{prefix}param_groups.{number}", group, len(group["params"])))
                for parameter in group["params"]:
                    numbers.setdefault(parameter, len(numbers))
            self._structure.add(optimizer.state)
            for parameter, state in optimizer.state.items():
                path = f"{prefix}state.{numbers.get(parameter, parameter)}"
                self._plan_state(path, state, tensors)
        self._tensors = [(mapping, key, tensor) for mapping, key, tensor in tensors.values()]
        self._kept = [_keep(tensor) for _, _, tensor in self._tensors]
        self._tensor_names = tuple(tensors)

    def _plan_state(self, path: str, state: Any, tensors: dict[str, Any]) -> None:
        if not isinstance(state, Mapping):
            return
        self._checked.append((state, len(state)))
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{path}.{key}"] = (state, key, value)
            else:
                self._read.append((f"{path}.{key}", state, key))

    def _holds(self) -> bool:
        return (
            self._structure.holds()
            and all(len(mapping) == size for mapping, size in self._checked)
            and all(mapping[key] is tensor for mapping, key, tensor in self._tensors)
            and all(len(group["params"]) == size for _, group, size in self._groups)
            and len(self._groups) == sum(len(o.param_groups) for o in self._optimizers.values())
        )

    def take(self) -> Leaves:
        """Returns the hyperparameters and the state of the optimizers as they are now."""
        if not self._holds():
            self._plan()
        hashes = _hash_kept(self._kept)
        if hashes is None:
            self._plan()
            hashes = _hash_kept(self._kept) or b""
        group_names, group_hashes = self._take_groups()
        others = [of_nested(mapping[key], path) for path, mapping, key in self._read]
        return Leaves(
            group_names + tuple(name for other in others for name in other.names) + self._tensor_names,
            group_hashes + b"".join(other.hashes for other in others) + hashes,
        )

    def _take_groups(self) -> tuple[tuple[str, ...], bytes]:
        entries = [
            (f"{path}.{key}", group[key])
            for first in (True, False)
            for path, group, _ in self._groups
            for key in group
            if key != "params" and (key == "lr") is first
        ]
        names, hashes = [], []
        for path, value in entries:
            names.append(path)
            hashes.append(leaf(value) if type(value) in PLAIN else _item(value))
        return tuple(names), b"".join(hashes)


def _item(value: Any) -> bytes:
    """Returns one hash of any value."""
    return leaf(value) if isinstance(value, torch.Tensor) else plain(of_nested(value).hashes)
