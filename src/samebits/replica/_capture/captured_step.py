"""A captured training step: one graph, its named inputs and outputs, the values that depend on the rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from samebits.errors import InvalidArgumentError
from samebits.replica._analysis.partitions import Groups

STATE, BATCH, GENERATOR, CONSTANT = "state", "batch", "generator", "constant"
"""Parameters, buffers, optimizer state; other tensors; a generator of the process; a closed-over tensor."""


@dataclass
class CapturedStep:
    """The result of `capture`. Prints itself as the graph with the names of its inputs.

    Example:
        >>> def step(model, x):
        ...     return {"loss": model(x).sum()}
        >>> args = torch.nn.Linear(3, 1), torch.ones(4, 3)
        >>> captured = samebits.replica.capture(step, *args, world_size=8)
        >>> captured.input_names, captured.output_names, captured.world_size
        (['model.weight', 'model.bias', 'x'], ['output.loss'], 8)
    """

    module: GraphModule
    """The graph of rank 0."""
    world_size: int
    kinds: dict[str, str]
    """Kind of each input, in the order of the graph's placeholders; generators and constants follow."""
    output_names: list[str]
    groups: dict[Node, Groups] = field(default_factory=dict)
    """All groups of each collective, over all ranks."""
    by_rank: dict[Node, tuple[Any, ...] | None] = field(default_factory=dict)
    """Arguments [ranks] of the nodes where they depend on the rank; None if not all ranks were run."""
    mesh: Mapping[str, int] = field(default_factory=dict)
    """Axes and their sizes, first axis slowest."""
    captured: tuple[int, ...] = (0,)
    """The ranks as which the code was run."""
    arguments: Sequence[str] = ()
    """Names of the arguments of the step."""
    outputs: pytree.TreeSpec = field(default_factory=lambda: pytree.tree_structure(None))
    """The tree of what the step returns."""
    shards: dict[str, Groups] = field(default_factory=dict)
    """The ranks that hold the same shard, for each constant that is a shard of a DTensor."""

    numbers: dict[str, Any] = field(default_factory=dict)
    """The numbers among the arguments that the graph holds, by path: learning rates, modes, flags."""

    written: tuple[str, ...] = ()
    """Arguments that are no parameters and that the step writes: they count as state."""

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs; of tensors as `model.fc.weight`, of generators as `generator:cpu`."""
        return list(self.kinds)

    def __str__(self) -> str:
        ranks = f"{len(self.captured)} of {self.world_size} ranks captured"
        nodes = sum(len(one.graph.nodes) for one in self.module.modules() if isinstance(one, GraphModule))
        head = f"step of {nodes} nodes, {ranks}"
        inputs = "\n".join(f"  {name} ({kind})" for name, kind in self.kinds.items())
        outputs = "\n  ".join(self.output_names)
        return f"{head}\ninputs\n{inputs}\noutputs\n  {outputs}\n{self.module.graph}"


def check_step(caller: str, step: Any) -> None:
    """Raises `InvalidArgumentError`, naming the function `caller`, unless `step` is a captured step."""
    if not isinstance(step, CapturedStep):
        raise InvalidArgumentError(
            f"{caller} takes a captured step, the result of samebits.replica.capture(...), not "
            f"{describe(step)}."
        )


def describe(value: Any) -> str:
    """Returns words for a wrong argument: the name of a class or function, else the object's class."""
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else f"{type(value).__name__}"


# Data parallelism that a graph can show: the reductions of `DistributedDataParallel`, which are C++, as
# functional collectives.


class DataParallel(nn.Module):
    """Stands for `DistributedDataParallel(module)` in a captured step; elsewhere it is the module alone.

    Gradients are averaged over all ranks as soon as `backward` has them, as there; `torch.autograd.grad`
    gives them unreduced, as there. With `broadcast_buffers`, buffers get the bits of rank 0 before a
    forward in training mode.

    Example:
        >>> def step(model, optimizer, x):
        ...     model(x).sum().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> model = samebits.replica.DataParallel(torch.nn.Linear(3, 1))
        >>> args = model, torch.optim.SGD(model.parameters()), torch.ones(4, 3)
        >>> samebits.replica.analyze(samebits.replica.capture(step, *args, world_size=8)).drifting
        ()
    """

    def __init__(self, module: nn.Module, *, broadcast_buffers: bool = True) -> None:
        super().__init__()
        self.module = module
        self.broadcast_buffers = broadcast_buffers

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the module."""
        if dist.is_initialized() and dist.get_backend() == "fake":
            self._reduce_gradients()
            if self.broadcast_buffers and self.training:
                for buffer in self.module.buffers():
                    buffer.copy_(collectives.broadcast(buffer, 0, _world()))
        return self.module(*args, **kwargs)

    def _reduce_gradients(self) -> None:
        for parameter in self.module.parameters():
            if parameter.requires_grad and not getattr(parameter, "_samebits_reduced", False):
                parameter.register_post_accumulate_grad_hook(_reduce)
                parameter._samebits_reduced = True  # type: ignore[attr-defined]


def _reduce(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad = collectives.all_reduce(parameter.grad, "avg", _world())


def _world() -> dist.ProcessGroup:
    world = dist.group.WORLD
    assert world is not None
    return world
