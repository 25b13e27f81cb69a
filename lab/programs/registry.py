"""The list of programs, and the training loop that most of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

Program = Callable[[], Any]
"""Trains for some steps, with the seed that the caller set, and returns tensors that all of it went into."""

PROGRAMS: dict[str, Program] = {}


def program(function: Program) -> Program:
    """Adds a program to the list."""
    PROGRAMS[function.__name__] = function
    return function


def trained(
    model: nn.Module | Iterable[Tensor],
    loss: Callable[[int], Tensor],
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
    *,
    steps: int = 3,
    clip: float = 0.0,
    **options: Any,
) -> list[Tensor]:
    """Returns the losses and the parameters after some steps; `loss` takes the step's number."""
    parameters = [*model.parameters()] if isinstance(model, nn.Module) else [*model]
    chosen = optimizer(parameters, **{"lr": 0.01, **options})
    losses = []
    for step in range(steps):
        chosen.zero_grad()
        value = loss(step)
        value.backward()
        if clip:
            nn.utils.clip_grad_norm_(parameters, clip)
        chosen.step()
        losses.append(value.detach())
    return [torch.stack(losses), *(each.detach() for each in parameters)]
