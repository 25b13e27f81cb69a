"""Stochastic rounding: the kernels' bits, the optimizers for 16-bit weights, a lowered step, and their cost."""

from __future__ import annotations

from collections.abc import Iterator

from samebits.selfcheck.case import Case, Part
from samebits.selfcheck.parts.rounding import lowered, numbers, optimizers, speed


def _cases() -> Iterator[Case]:
    for module in (numbers, optimizers, lowered, speed):
        yield from module.cases()


PART = Part(
    "rounding",
    "stochastic rounding has the CPU's bits; optimizers repeat theirs; time against torch and torchao",
    2,
    _cases,
)
