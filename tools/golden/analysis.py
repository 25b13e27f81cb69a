"""Replica-equal analysis of a set of programs, and stochastic rounding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import samebits
from samebits import random, replica, rounding

Facts = Iterator[tuple[str, Any]]


def train(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """An ordinary step."""
    loss = F.cross_entropy(model(x).float(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def reduced(model: Any, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    """A step that averages its gradients by hand."""
    F.cross_entropy(model(x), y).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()


def collectives(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    """One of each collective, views and writes."""
    gathered = torch.empty(4 * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(gathered, x)
    scattered = torch.empty(x.shape[0] // 4, *x.shape[1:])
    dist.reduce_scatter_tensor(scattered, x)
    exchanged = torch.empty_like(x)
    dist.all_to_all_single(exchanged, x)
    sent = x.clone()
    dist.broadcast(sent, 2)
    total = x.sum()
    dist.all_reduce(total)
    partly = w.clone()
    partly[:2] += x[:2]
    return {
        "gathered": gathered, "scattered": scattered, "exchanged": exchanged, "sent": sent, "total": total,
        "partly": partly, "half": partly[2:] * 2, "drawn": torch.rand(3), "ranked": w + dist.get_rank(),
    }  # fmt: skip


def branches(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    """A branch on a value that varies, and one on a value that does not."""
    same = torch.cond(w.sum() > 0, lambda a: a + 1, lambda a: a - 1, (w,))
    apart = torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a - 1, (w,))
    return {"same": same, "apart": apart, "sorted": torch.sort(w)[0], "picked": w[x.long().clamp(0, 1)]}


def _net(norm: torch.nn.Module | None = None) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(16, 16), norm or torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )


def _trained(
    step: Callable[..., Any], model: torch.nn.Module, kind: Any = torch.optim.AdamW
) -> tuple[Any, ...]:
    return step, model, kind(model.parameters(), lr=1e-2), torch.randn(8, 16), torch.randint(0, 4, (8,))


PROGRAMS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "parallel": lambda: _trained(train, replica.DataParallel(_net())),
    "parallel.dropout": lambda: _trained(train, replica.DataParallel(_net(torch.nn.Dropout(0.2)))),
    "batchnorm": lambda: _trained(train, replica.DataParallel(_net(torch.nn.BatchNorm1d(16)))),
    "forgotten": lambda: _trained(train, _net()),
    "reduced": lambda: _trained(reduced, _net(), torch.optim.SGD),
    "rounding": lambda: _trained(train, replica.DataParallel(_net()), rounding.optim.AdamW),
    "collectives": lambda: (collectives, torch.randn(8, 3), torch.nn.Parameter(torch.ones(8, 3))),
    "branches": lambda: (branches, torch.ones(4, 3), torch.nn.Parameter(torch.ones(4, 3))),
}
MESHES = ({"dp": 4}, {"dp": 2, "tp": 2})


def replicas(tree: Path) -> Facts:
    """The verdict on every input and output of each program, over two meshes; what drifts; and the texts."""
    for name, make in PROGRAMS.items():
        for mesh in MESHES:
            samebits.set_random_seed(1)
            step, *arguments = make()
            captured = replica.capture(step, *arguments, mesh=mesh)
            report = replica.analyze(captured)
            where = f"{name}/{'x'.join(map(str, mesh.values()))}"
            names = [*captured.kinds, *_outputs(name)]
            yield f"{where}/verdicts", {one: [list(part) for part in report.partition(one)] for one in names}
            yield f"{where}/drifting", list(report.drifting)
            yield f"{where}/report", _without_lines(str(report))
            yield f"{where}/listing", _without_lines(replica.listing(report))
            yield f"{where}/explanations", [_without_lines(report.explain(one)) for one in names]


def _without_lines(text: str) -> str:
    """The text without the numbers of this file's lines, which an edit of it moves."""
    return re.sub(r"analysis\.py:\d+", "analysis.py", text)


def _outputs(program: str) -> list[str]:
    outputs = {
        "collectives": "gathered scattered exchanged sent total partly half drawn ranked",
        "branches": "same apart sorted picked",
        "reduced": "",
    }
    return [f"output.{name}" for name in outputs.get(program, "loss").split()]


DTYPES = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def rounding_facts(tree: Path) -> Facts:
    """The function, the optimizers, and a lowered step, which is left alone by `rounding=False`."""
    key = random.key(3)
    for dtype in DTYPES:
        x = random.normal(key, 70_001) * torch.exp2(random.randint(key, 70_001, low=-30, high=12))
        x[:4] = torch.tensor([0.0, -0.0, float("inf"), 1.0])
        flat, square = rounding.stochastic_round(x, dtype, key), x[:70_000].view(250, 280)
        yield f"stochastic_round/{str(dtype)[6:]}", flat.view(torch.uint8)
        turned = [rounding.stochastic_round(one, dtype, key) for one in (square.t(), square[:, ::3])]
        yield (
            f"stochastic_round/{str(dtype)[6:]}/strided",
            [one.contiguous().view(torch.uint8) for one in turned],
        )
    for kind, options in (
        (rounding.optim.SGD, {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
        (rounding.optim.AdamW, {"lr": 1e-3}),
        (rounding.optim.AdamW, {"lr": 1e-3, "amsgrad": True, "maximize": True}),
        (rounding.optim.AdamW, {"lr": 1e-3, "state_dtype": torch.bfloat16}),
    ):
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            name = "-".join([kind.__name__, *map(str, options), str(dtype)[6:]])
            yield name, _optimized(kind, options, dtype)
    yield from _lowered()


def _optimized(kind: Any, options: dict[str, Any], dtype: torch.dtype) -> list[Any]:
    samebits.set_random_seed(4)
    keys = random.split(random.key(5), 3)
    shapes = ((33,), (40, 30), (200, 301))
    weights = [
        random.normal(key, *shape, dtype=dtype).requires_grad_()
        for key, shape in zip(keys, shapes, strict=True)
    ]
    weights[1] = weights[1].detach().t().requires_grad_()
    optimizer = kind([(f"w{number}", weight) for number, weight in enumerate(weights)], **options)
    for step in range(3):
        for key, weight in zip(keys, weights, strict=True):
            weight.grad = random.normal(random.fold_in(key, step), *weight.shape, dtype=dtype)
        optimizer.step()
    return [weights, [{k: v for k, v in sorted(optimizer.state[w].items())} for w in weights]]


def _lowered() -> Facts:
    samebits.enable_op_determinism(across="threads")
    for seeded in (True, False):
        samebits.set_random_seed(6)
        model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)).to(
            torch.bfloat16
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x = random.normal(random.key(1), 8, 16, dtype=torch.bfloat16)
        y = random.randint(random.key(2), 8, high=4)
        train(model, optimizer, x, y)
        captured = replica.capture(train, model, optimizer, x, y, world_size=1)
        if seeded:
            methods = rounding.assign_methods(captured, replica.analyze(captured))
            yield "methods", {name: str(method) for name, method in methods.items()}
        lowered = rounding.lower(captured, **({"seed": 1} if seeded else {"rounding": False}))
        losses = [lowered(model, optimizer, x, y)["loss"] for _ in range(3)]
        state = lowered.state_dict()
        yield f"lowered/{'rounding' if seeded else 'plain'}", [losses, dict(model.state_dict()), state]


SECTIONS = {"replicas": replicas, "rounding": rounding_facts}
