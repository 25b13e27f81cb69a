"""A whole training step in bfloat16, captured and lowered on CUDA: every op rounded stochastically, the same again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from samebits import random, replica, rounding
from samebits.random._process import generator_states
from samebits.selfcheck.agreement import agree
from samebits.selfcheck.case import Case, Measured, Target

_STEPS = 3


def cases() -> Iterator[Case]:
    """Yields the case; a capture takes seconds of imports."""
    example = {"the captured step": {"plain": [torch.ones(3)], "lowered": [torch.ones(3)]}}
    example["every op rounded"] = {"once": [torch.ones(3)], "again": [torch.ones(3)]}
    yield Case("a lowered step", _lowered, agree, limit_s=120, example=example)


def train(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """Makes one step."""
    loss = F.cross_entropy(model(x).float(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def arguments(width: int, batch: int, device: str) -> tuple[Any, ...]:
    """Returns the arguments of `train`: a model in bfloat16, AdamW with state, and a batch; the same ones each time."""
    with generator_states.preserve_states():
        torch.manual_seed(3)
        layers = torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.ReLU()
        model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).to(torch.bfloat16)
    model = model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    key = random.key(2, device="cpu")
    x = random.normal(key, batch, width).to(device, torch.bfloat16)
    y = random.randint(random.fold_in(key, 1), batch, high=10).to(device)
    train(model, optimizer, x, y)
    return model, optimizer, x, y


def lower(args: tuple[Any, ...], *, rounded: bool) -> Callable[..., Any]:
    """Returns the step captured with these arguments, as it is or with every op rounded."""
    captured = replica.capture(train, *args, world_size=1)
    if not rounded:
        return rounding.lower(captured, rounding=False)
    rounding.assign_methods(captured, replica.analyze(captured))
    return rounding.lower(captured, seed=1)


def _lowered(target: Target) -> Measured:
    width, batch = (16, 8) if target.small else (256, 64)

    def ran(step: Callable[..., Any]) -> list[torch.Tensor]:
        given = arguments(width, batch, target.device)
        losses = [step(*given).cpu() for _ in range(_STEPS)]
        return losses + [weight.detach().cpu() for weight in given[0].parameters()]

    def made(*, rounded: bool) -> Callable[..., Any]:
        return lower(arguments(width, batch, target.device), rounded=rounded)

    return Measured({
        "the captured step": {"plain": ran(train), "lowered": ran(made(rounded=False))},
        "every op rounded": {"once": ran(made(rounded=True)), "again": ran(made(rounded=True))},
    })  # fmt: skip
