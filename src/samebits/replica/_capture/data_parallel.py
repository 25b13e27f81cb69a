"""Data parallelism that a graph can show: the reductions of `DistributedDataParallel`, which are C++, as functional
collectives.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn


class DataParallel(nn.Module):
    """Stands for `DistributedDataParallel(module)` in a step that is captured; elsewhere it is the module alone.

    Gradients are averaged over all ranks as soon as `backward` has them, as there; `torch.autograd.grad` gives them
    unreduced, as there. Buffers get the bits of rank 0 before a forward in training mode, if `broadcast_buffers`.

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
