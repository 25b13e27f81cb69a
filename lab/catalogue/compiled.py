"""Compiled graphs: a few with many ops each, since each is compiled anew for each thread count, as a new process does."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from lab.catalogue.case import Input, ReviewCase, Run, integers, normal, with_gradients

_G = "compiled"
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

    yield ReviewCase(_G, name, build, repeats=3, traced=False, counts=_COUNTS)


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

CASES: tuple[ReviewCase, ...] = (
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
