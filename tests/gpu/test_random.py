"""A case for each function: the bits of the GPU against those of the CPU, and against its own, drawn again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch

from samebits import random
from samebits.random._triton import launchers
from samebits.selfcheck.agreement import agree
from samebits.selfcheck.case import Case, Measured, Target, equal, expected
from samebits.selfcheck.draws import DRAWS, KEYS, key_of

_MANY = 1 << 20
_SIZES = (3, 7, 1023, 4097, 65_539, _MANY)
_FEW_SIZES = (3, 7)
"""Numbers of one key: odd sizes end within a block, a thread's vector and a program. One number takes code of its own, so
it is drawn once for each function."""

_WITHOUT_SIZE = frozenset({"split", "fold_in", "permutation", "permute_index"})
_LARGE: dict[str, dict[str, Callable[[torch.Tensor, int], torch.Tensor]]] = {
    "permutation": {
        "of 2**20 numbers": random.permutation,
        "of 2**20 + 7 numbers": lambda key, n: random.permutation(key, n + 7),
        "of the rows of a tensor": lambda key, n: random.permutation(
            key, torch.arange(2 * n, device=key.device).view(n, 2)
        ),
    },
    "choice": {
        "a million of 10**12": lambda key, n: random.choice(key, 10**12, n, replace=False),
        "weighted, of 2**20": lambda key, n: random.choice(
            key, n, n, weights=torch.arange(n, dtype=torch.float64, device=key.device)
        ),
    },
}
"""By function, of (key, number): functions that `DRAWS` has in small sizes only, as Triton's interpreter runs it too."""


def cases() -> Iterator[Case]:
    """Yields one case for each function, and two controls."""
    for function, names in by_function().items():
        yield Case(function, partial(_measure, function, names), agree, limit_s=200)
    yield Case("another key draws other numbers", _control, expected(other=False, again=True))
    seen = {"as launched": True, "fused": False}
    yield Case("a kernel that fuses draws other numbers", _fusing, expected(**seen), example=seen)


def by_function() -> dict[str, list[str]]:
    """Returns the names of `DRAWS` by their first word."""
    found: dict[str, list[str]] = {}
    for name in DRAWS:
        found.setdefault(name.split()[0], []).append(name)
    return found


def _measure(function: str, names: list[str], target: Target) -> Measured:
    results = {}
    for name in names:
        for kind, (batch, shape) in KEYS.items():
            results[f"{name}, {kind}"] = _compared(DRAWS[name], key_of(batch), shape, target)
        if function not in _WITHOUT_SIZE:
            sizes = _FEW_SIZES if target.small else _SIZES
            sizes = (1, *sizes) if name == names[0] else sizes
            results[f"{name}, sizes"] = _compared(
                lambda key, sizes, draw=DRAWS[name]: [draw(key, (size,)) for size in sizes],
                key_of(()),
                sizes,
                target,
            )
    for name, draw in _LARGE.get(function, {}).items():
        number = 1000 if target.small else _MANY
        results[f"{function} {name}"] = _compared(draw, key_of(()), number, target)
    return Measured(results)


def _compared(draw: Callable, key: torch.Tensor, shape: object, target: Target) -> dict[str, object]:
    there = key.to(target.device)
    return {
        "the CPU": draw(key, shape),
        "the GPU": _here(draw(there, shape), target),
        "the GPU again": _here(draw(there, shape), target),
    }


def _here(drawn: torch.Tensor | list[torch.Tensor], target: Target) -> torch.Tensor | list[torch.Tensor]:
    """Returns the numbers on the CPU; raises if they were drawn on another device than expected."""
    if isinstance(drawn, list):
        return [one for each in drawn if isinstance(one := _here(each, target), torch.Tensor)]
    if drawn.device.type != torch.device(target.device).type:
        raise AssertionError(f"the key is on {target.device}, and the result on {drawn.device}")
    return drawn.cpu()


def _control(target: Target) -> Measured:
    """Measures a key that differs in one bit."""
    key, other = random.key(3, device=target.device), random.key(2, device="cpu")
    drawn = random.normal(key, 100).cpu()
    return Measured({
        "other": equal(drawn, random.normal(other, 100)),
        "again": equal(drawn, random.normal(key, 100).cpu()),
    })  # fmt: skip


def _fusing(target: Target) -> Measured:
    """Shows that without `enable_fp_fusion=False` the GPU contracts products and sums, and the comparison with the CPU
    sees it.
    """
    kernel, number, results = launchers("normal").fill.normal_32, 4096, {}
    key = random.key(3, device="cpu")
    for name, fused in (("as launched", False), ("fused", True)):
        out = torch.empty(number, device=target.device)
        given = key.to(target.device), out, 1, number, 0.0, 1.0
        kernel[(number // 1024,)](*given, BLOCKS=256, ONE_KEY=True, enable_fp_fusion=fused)
        results[name] = equal(out.cpu(), random.normal(key, number))
    return Measured(results)
