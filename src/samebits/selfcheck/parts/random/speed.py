"""The speed against torch's generators: microseconds of a call and ns per number, with the cost of a launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.nn import functional as F

from samebits import random
from samebits.selfcheck.case import Case, Measured, Target, expected
from samebits.selfcheck.timing import Call, capture_graph, compare

_SIZES = {"2**10": 1 << 10, "2**20": 1 << 20, "2**26": 1 << 26}
_REPLAYED = 10
_JUDGED = ("2**20", "2**26")
"""Sizes for which it is a goal to be at least as fast; the smallest one shows the cost of a launch."""


def cases() -> Iterator[Case]:
    """Yields one case for each size."""
    for size, number in _SIZES.items():
        measure = partial(_measure, size, number)
        yield Case(f"ns per number, {size}", measure, expected(timed=list(_ROWS)), limit_s=150)
    alone = expected(timed=[name for name in _ROWS if name not in _NOT_CAPTURED])
    yield Case("ns per number, 2**20, kernels alone", _kernels_alone, alone, limit_s=150)


def _measure(size: str, number: int, target: Target) -> Measured:
    number = min(number, 1 << 10) if target.small else number
    figures: dict[str, float | str] = {}
    goals = {}
    for name, make in _ROWS.items():
        ours, theirs, faster = compare(*make(number, target.device), target)
        figures[name] = f"{ours / number:.4g} (torch {theirs / number:.4g})"
        if size in _JUDGED:
            goals[f"{name} at least as fast ({faster:.2f}x)"] = faster >= 1
        else:
            figures[name] = f"{ours / 1000:.1f} us (torch {theirs / 1000:.1f} us)"
    return Measured({"timed": list(figures)}, figures, goals)


def _kernels_alone(target: Target) -> Measured:
    """Measures CUDA graphs: without the cost of a launch, which is most of a call of a million numbers."""
    number = 1 << 10 if target.small else 1 << 20
    figures: dict[str, float | str] = {}
    goals = {}
    for name, make in _ROWS.items():
        if name in _NOT_CAPTURED:
            continue
        calls = [capture_graph(call, _REPLAYED, target.device) for call in make(number, target.device)]
        ours, theirs, faster = compare(calls[0], calls[1], target)
        each = number * _REPLAYED
        figures[name] = f"{ours / each:.4g} (torch {theirs / each:.4g})"
        goals[f"{name} at least as fast ({faster:.2f}x)"] = faster >= 1
    return Measured({"timed": list(figures)}, figures, goals)


Row = Callable[[int, str], tuple[Call, Call]]


def _drawn(ours: Callable[..., object], theirs: Callable[..., object], **given: object) -> Row:
    """Returns `ours(key, n)` against `theirs` of a size and device."""

    def make(n: int, device: str) -> tuple[Call, Call]:
        key = random.key(1, device=device)
        return lambda: ours(key, n, **given), lambda: theirs(n, device=device, **given)

    return make


def _filled(ours: Callable[..., object], theirs: Callable[[torch.Tensor], object]) -> Row:
    """Returns `ours(key, n)` against a function that fills an empty tensor."""

    def make(n: int, device: str) -> tuple[Call, Call]:
        key = random.key(1, device=device)
        return lambda: ours(key, n), lambda: theirs(torch.empty(n, device=device))

    return make


def _integers(n: int, device: str) -> tuple[Call, Call]:
    key = random.key(1, device=device)
    return lambda: random.randint(key, n, high=1000), lambda: torch.randint(1000, (n,), device=device)


def _dropped(dtype: torch.dtype) -> Row:
    def make(n: int, device: str) -> tuple[Call, Call]:
        key, x = random.key(1, device=device), torch.rand(n, device=device).to(dtype)
        return lambda: random.dropout(key, x, 0.3), lambda: F.dropout(x, 0.3)

    return make


def _with_gradient(n: int, device: str) -> tuple[Call, Call]:
    key, x = random.key(1, device=device), torch.rand(n, device=device, requires_grad=True)
    grad = torch.ones_like(x)
    return (
        lambda: torch.autograd.grad(random.dropout(key, x, 0.3), x, grad),
        lambda: torch.autograd.grad(F.dropout(x, 0.3), x, grad),
    )


_ROWS: dict[str, Row] = {
    "rand": _drawn(random.uniform, torch.rand),
    "rand bfloat16": _drawn(random.uniform, torch.rand, dtype=torch.bfloat16),
    "randn": _drawn(random.normal, torch.randn),
    "randn bfloat16": _drawn(random.normal, torch.randn, dtype=torch.bfloat16),
    "randn float64": _drawn(random.normal, torch.randn, dtype=torch.float64),
    "exponential_": _filled(random.exponential, lambda x: x.exponential_()),
    "bernoulli_": _filled(lambda key, n: random.bernoulli(key, n, p=0.3), lambda x: x.bernoulli_(0.3)),
    "randint": _integers,
    "randperm": _drawn(random.permutation, torch.randperm),
    "dropout": _dropped(torch.float32),
    "dropout bfloat16": _dropped(torch.bfloat16),
    "dropout and gradient": _with_gradient,
}
"""(ours, torch's) of a number of elements and a device."""
_NOT_CAPTURED = frozenset({"randperm", "dropout and gradient"})
