"""Patches for the time of a trace: seeds that the step sets are refused, writes to constants are traced."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.fx import Node
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.proxy_tensor import PythonKeyTracer

from samebits._inspect.patching import replaced
from samebits.errors import UnimplementedError


@contextlib.contextmanager
def disable_constant_folding() -> Iterator[None]:
    """Makes `.item()` of a `torch.tensor(3)` a value of the graph, as of any other tensor.

    Tracing would keep the number, and misses that collectives, ops over lists and writes through views change it.
    """
    with (
        replaced(fake_tensor, "CONSTANT_NUMEL_LIMIT", -1),
        replaced(proxy_tensor, "CONSTANT_NUMEL_LIMIT", -1),
    ):
        yield


@contextlib.contextmanager
def trace_writes_to_constants() -> Iterator[None]:
    """Has `counter.add_(1)` of a tensor that the step closes over traced; fake tensors would run it on the tensor."""
    original = fake_tensor.should_allow_numbers_as_tensors
    with replaced(
        fake_tensor,
        "should_allow_numbers_as_tensors",
        lambda op: original(op) and not op._schema.is_mutable,
    ):
        yield


@contextlib.contextmanager
def forbid_seeding() -> Iterator[None]:
    """Refuses a step that seeds the generator of the process: draws on fake tensors do not move it.

    Raises:
        UnimplementedError: at the first op after the seeding, and at the end of the step.
    """
    start, seed, original = torch.get_rng_state(), torch.initial_seed(), PythonKeyTracer.create_node

    def create_node(tracer: Any, *args: Any, **kwargs: Any) -> Node:
        node = original(tracer, *args, **kwargs)
        if torch.initial_seed() != seed:
            raise _seeded(f"before {node.name} = {node.target}")
        return node

    with replaced(PythonKeyTracer, "create_node", create_node):
        yield
    if not torch.equal(torch.get_rng_state(), start):
        raise _seeded("at its end")


def _seeded(where: str) -> UnimplementedError:
    return UnimplementedError(
        f"capture: the step sets the state of the generator of the process (found {where}); the analysis does not follow "
        "torch.manual_seed and set_rng_state. Seed before the step, or draw from a torch.Generator of its own."
    )


@contextlib.contextmanager
def forbid_data_assignment() -> Iterator[None]:
    """Refuses `x.data = y`, which gives a tensor other memory and is no op of a trace."""

    def swap(tensor: torch.Tensor, value: torch.Tensor) -> None:
        raise UnimplementedError(
            f"capture: the step sets x.data of a tensor of shape {tuple(tensor.shape)}, which a trace does not show; "
            "write x.data.copy_(y)."
        )

    refusing = property(torch._C.TensorBase.data.__get__, swap)  # type: ignore[attr-defined]
    with replaced(torch.Tensor, "data", refusing):
        yield


@contextlib.contextmanager
def torchrun_environment(rank: int, ranks: int) -> Iterator[None]:
    """Sets the environment that `torchrun` gives a process of one host."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(value) for name, value in names.items()})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
