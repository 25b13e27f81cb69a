"""Whole training steps: optimizers, gradient clipping, a transformer, a convolutional net and an MLP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from lab.catalogue.case import BF16, F32, ReviewCase, Run, integers, normal, placed

_G = "training"
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
    yield ReviewCase(_G, f"{name} {extras}".strip(), build)


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

    yield ReviewCase(_G, f"clip_grad_norm_ {order}", build)


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

    yield ReviewCase(_G, f"{name} step [{'bfloat16 autocast' if dtype is BF16 else 'float32'}]", build)


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


CASES: tuple[ReviewCase, ...] = (
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
