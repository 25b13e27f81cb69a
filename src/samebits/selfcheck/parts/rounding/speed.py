"""The cost of rounding: against torch's cast and optimizers, torchao's way in torch's ops, and torchao, if installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module

import torch

from samebits import random
from samebits.random._process import generator_states
from samebits.rounding import optim, stochastic_round
from samebits.selfcheck.case import Case, Measured, Target, expected
from samebits.selfcheck.parts.rounding import lowered
from samebits.selfcheck.timing import Call, compare

_NUMBERS, _WEIGHTS = 1 << 26, 1 << 24
_BF16 = torch.bfloat16
Rows = dict[str, tuple[Call, Call]]


def cases() -> Iterator[Case]:
    """Yields the cases; `timed` lists what could be timed."""
    for name, rows, elements, needs in (
        ("ns per number", _casts, _NUMBERS, ()),
        ("ns per weight of a step", _steps, _WEIGHTS, ()),
        ("ns per number, torchao", _torchao, _NUMBERS, ("torchao",)),
        ("ns per weight of a step, torchao", _torchao_step, _WEIGHTS, ("torchao",)),
    ):
        yield _case(name, rows, elements, needs)
    yield Case(
        "a lowered step, times the captured", _factor, expected(timed=1), limit_s=150, example={"timed": 1}
    )


def _case(name: str, rows: Callable[[int, str], Rows], elements: int, needs: tuple[str, ...]) -> Case:
    def measure(target: Target) -> Measured:
        count = 1 << 10 if target.small else elements
        with generator_states.preserve_states():
            random.set_random_seed(1)
            return _timed(rows(count, target.device), count, target)

    return Case(
        name,
        measure,
        expected(timed=True),
        limit_s=150,
        needs=needs,
        example={"timed": True} if needs else None,
    )


def _timed(rows: Rows, count: int, target: Target) -> Measured:
    figures: dict[str, float | str] = {}
    goals = {}
    for name, (ours, theirs) in rows.items():
        own, other, faster = compare(ours, theirs, target)
        figures[name] = f"{own / count:.4g} (theirs {other / count:.4g})"
        goals[f"{name}: at least as fast ({faster:.2f}x)"] = faster >= 1
    return Measured({"timed": bool(figures)}, figures, goals)


def _of_bits(x: torch.Tensor) -> torch.Tensor:
    """Rounds as torchao does, in torch's ops: 16 random bits added to those of the float32, the lower half cut off."""
    bits = x.view(torch.int32) + torch.randint(0, 1 << 16, x.shape, dtype=torch.int32, device=x.device)
    return (bits & -65536).view(torch.float32).bfloat16()


def _casts(count: int, device: str) -> Rows:
    x, key = torch.randn(count, device=device), random.key(1, device=device)

    def row(dtype: torch.dtype) -> tuple[Call, Call]:
        return lambda: stochastic_round(x, dtype, key), lambda: x.to(dtype)

    return {
        "bfloat16, torch's cast": row(_BF16),
        "bfloat16, torchao's way": (lambda: stochastic_round(x, _BF16, key), lambda: _of_bits(x)),
        "float16, torch's cast": row(torch.float16),
        "float8_e4m3fn, torch's cast": row(torch.float8_e4m3fn),
        "float8_e5m2, torch's cast": row(torch.float8_e5m2),
    }


def _stepper(make: Callable[..., torch.optim.Optimizer], shapes: list[int], device: str) -> Call:
    weights = [torch.nn.Parameter(torch.randn(size, device=device).to(_BF16)) for size in shapes]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, device=device).to(_BF16)
    return make(weights).step


def _steps(count: int, device: str) -> Rows:
    def row(
        ours: Callable[..., torch.optim.Optimizer], theirs: Callable[..., torch.optim.Optimizer]
    ) -> tuple[Call, Call]:
        return _stepper(ours, whole, device), _stepper(theirs, whole, device)

    whole, parts = [count], [max(1, count // 256)] * 256
    return {
        "AdamW, torch's fused": row(optim.AdamW, lambda w: torch.optim.AdamW(w, fused=True)),
        "AdamW, torch's foreach": row(optim.AdamW, lambda w: torch.optim.AdamW(w, foreach=True)),
        "AdamW with bfloat16 state, torch's fused": row(
            lambda w: optim.AdamW(w, state_dtype=_BF16), lambda w: torch.optim.AdamW(w, fused=True)
        ),
        "AdamW of 256 weights, torch's fused": (
            _stepper(optim.AdamW, parts, device),
            _stepper(lambda w: torch.optim.AdamW(w, fused=True), parts, device),
        ),
        "SGD with momentum, torch's fused": row(
            lambda w: optim.SGD(w, momentum=0.9), lambda w: torch.optim.SGD(w, momentum=0.9, fused=True)
        ),
    }


def _torchao(count: int, device: str) -> Rows:
    x, key = torch.randn(count, device=device), random.key(1, device=device)
    rounds = torch.compile(import_module("torchao.optim.quant_utils")._fp32_to_bf16_sr)
    return {"bfloat16, torchao's compiled": (lambda: stochastic_round(x, _BF16, key), lambda: rounds(x))}


def _torchao_step(count: int, device: str) -> Rows:
    theirs = import_module("torchao.optim")._AdamW
    return {
        "AdamW with bfloat16 state, torchao's": (
            _stepper(lambda w: optim.AdamW(w, state_dtype=_BF16), [count], device),
            _stepper(lambda w: theirs(w, bf16_stochastic_round=True), [count], device),
        )
    }


def _factor(target: Target) -> Measured:
    width, batch = (16, 8) if target.small else (512, 128)
    given = lowered.arguments(width, batch, target.device)
    plain, rounded = (lowered.lower(given, rounded=one) for one in (False, True))
    own, other, faster = compare(lambda: rounded(*given), lambda: plain(*given), target)
    figures: dict[str, float | str] = {
        "lowered us": own / 1000,
        "captured us": other / 1000,
        "times": 1 / faster,
    }
    return Measured({"timed": 1}, figures)
