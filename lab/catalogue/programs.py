"""Programs of the battery: compiled graphs, and whole training steps.

A few compiled graphs have many ops each, since each is compiled anew for each thread count, as a new process does. The steps
are those of optimizers, gradient clipping, a transformer, a convolutional net and an MLP.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lab.catalogue.case import BF16, F32, Input, ReviewCase, Run, integers, normal, placed, with_gradients

_COUNTS = (1, 2, 3)
"""Compiling takes seconds."""


def _compiled(
    name: str, function: Callable[..., Any], *inputs: Input, anew: bool = True
) -> Iterator[ReviewCase]:
    """`anew`: compiled at each thread count; else compiled at the first and called at all."""

    def build() -> Iterator[Run]:
        if shutil.which("g++") is None and shutil.which("clang++") is None:
            raise OSError("there is no C++ compiler, which torch.compile needs on the CPU")
        arguments = [make(torch.float32) for make in inputs]
        ready: dict[int, Callable[..., Any]] = {}

        def run() -> Any:
            count = torch.get_num_threads() if anew else 0
            if count not in ready:
                torch._dynamo.reset()
                ready[count] = torch.compile(function)
            return with_gradients(ready[count], arguments)

        yield run

    yield ReviewCase("compiled", name, build, repeats=3, traced=False, counts=_COUNTS)


def _sums(x: torch.Tensor, z: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    """Reductions over all, rows and columns, a scan, norms, softmax, and a loss."""
    return [
        *((x * 1.5).sum(), x.abs().sum(), z.sum(0), z.mean(1), z.softmax(0)),
        F.layer_norm(z, (512,), w, b),
        F.mse_loss(x, x.sin()),
    ]


def _writes(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor, table: torch.Tensor) -> list[torch.Tensor]:
    """Adds and writes at duplicate indices, and the gradients of reading there."""
    return [
        x.index_put((i,), s, accumulate=True),
        x.index_put((i,), s),
        x.scatter_add(0, i, s),
        x.index_add(0, i, s),
        x.scatter_reduce(0, i, s, "mean"),
        F.embedding(i, table),
        x[i] * 2,
    ]


def _network(
    x: torch.Tensor, k: torch.Tensor, w: torch.Tensor, b: torch.Tensor, y: torch.Tensor
) -> torch.Tensor:
    """A convolution, a normalisation, a head, and a loss."""
    h = F.conv2d(x, k, padding=1)
    h = F.gelu(F.batch_norm(h, None, None, training=True)).mean((2, 3))
    return F.cross_entropy(F.linear(h, w, b), y)


_SUMS = (normal(1_000_003), normal(4096, 512), normal(512), normal(512))

COMPILED: tuple[ReviewCase, ...] = (
    *_compiled("reductions, compiled at each thread count", _sums, *_SUMS),
    *_compiled("reductions, compiled once", _sums, *_SUMS, anew=False),
    *_compiled(
        "indexed writes, compiled at each thread count",
        _writes,
        normal(1000),
        integers(1000, 100_000),
        normal(100_000),
        normal(1000, 8),
    ),
    *_compiled(
        "network step, compiled at each thread count",
        _network,
        normal(16, 3, 32, 32),
        normal(16, 3, 3, 3),
        normal(10, 16),
        normal(10),
        integers(10, 16),
    ),
)


_LR = 1e-2


def _optimizer(name: str, options: dict[str, Any]) -> Iterator[ReviewCase]:
    def build() -> Iterator[Run]:
        start = [placed(normal(*shape)(F32)) for shape in ((1000, 1001), (200_003,), (17, 33))]
        grads = [placed(normal(*tensor.shape, scale=0.1)(F32)) for tensor in start]

        def run() -> Any:
            parameters = [nn.Parameter(tensor.clone()) for tensor in start]
            optimizer = getattr(torch.optim, name)(parameters, lr=_LR, **options)
            for _ in range(2):
                for parameter, grad in zip(parameters, grads, strict=True):
                    parameter.grad = grad.clone()
                optimizer.step()
            return parameters, optimizer.state_dict()["state"]

        yield run

    extras = ", ".join(f"{key}={value}" for key, value in options.items())
    yield ReviewCase("training", f"{name} {extras}".strip(), build)


def _clip(order: float) -> Iterator[ReviewCase]:
    def build() -> Iterator[Run]:
        grads = [placed(normal(*shape)(F32)) for shape in ((1024, 1024), (1024, 777), (33,))]

        def run() -> Any:
            parameters = [nn.Parameter(torch.zeros_like(grad)) for grad in grads]
            for parameter, grad in zip(parameters, grads, strict=True):
                parameter.grad = grad.clone()
            norm = nn.utils.clip_grad_norm_(parameters, 1.0, order)
            return norm, [parameter.grad for parameter in parameters]

        yield run

    yield ReviewCase("training", f"clip_grad_norm_ {order}", build)


def _step(
    name: str, make: Callable[[], nn.Module], batch: Callable[[], tuple[Any, Any]], dtype: torch.dtype
) -> Iterator[ReviewCase]:
    """Two steps of AdamW from the same weights; in bfloat16 under autocast."""

    def build() -> Iterator[Run]:
        torch.manual_seed(0)
        start, (x, y) = placed(make()), placed(batch())

        def run() -> Any:
            model = deepcopy(start)
            optimizer = torch.optim.AdamW(model.parameters(), lr=_LR)
            losses = []
            for _ in range(2):
                optimizer.zero_grad()
                with torch.autocast(x.device.type, torch.bfloat16, enabled=dtype is BF16):
                    loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                losses.append(loss.detach())
            return losses, model.state_dict(), [p.grad for p in model.parameters()]

        yield run

    yield ReviewCase(
        "training", f"{name} step [{'bfloat16 autocast' if dtype is BF16 else 'float32'}]", build
    )


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(128, 4, 256, 0.1, batch_first=True)
    return nn.Sequential(
        nn.Embedding(500, 128), nn.TransformerEncoder(layer, 2), nn.LayerNorm(128), nn.Linear(128, 500)
    )


def _convnet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(64, 10)),
    )


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)
    )


TRAINING: tuple[ReviewCase, ...] = (
    *(
        case
        for name, extras in {
            "SGD": ({"momentum": 0.9, "nesterov": True}, {"fused": True}, {"foreach": True}),
            "Adam": ({"foreach": False}, {"foreach": True}, {"fused": True}),
            "AdamW": ({"foreach": False}, {"foreach": True}, {"fused": True, "amsgrad": True}),
            "Adagrad": ({"foreach": False}, {"fused": True}),
            **{
                other: ({"foreach": False}, {"foreach": True})
                for other in ("RMSprop", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop", "Adadelta")
            },
            "Adafactor": ({},),
        }.items()
        for options in extras
        for case in _optimizer(name, options)
    ),
    *(case for order in (1.0, 2.0, 3.0, float("inf")) for case in _clip(order)),
    *(
        case
        for dtype in (F32, BF16)
        for case in (
            *_step(
                "transformer",
                _transformer,
                lambda: (integers(500, 16, 64)(F32), integers(500, 16, 64)(F32)),
                dtype,
            ),
            *_step("convnet", _convnet, lambda: (normal(32, 3, 32, 32)(F32), integers(10, 32)(F32)), dtype),
            *_step("MLP", _mlp, lambda: (normal(4096, 64)(F32), integers(10, 4096)(F32)), dtype),
        )
    ),
)
