"""Random numbers: every function of samebits.random has on the GPU the bits of the CPU, and takes as long as torch's."""

from __future__ import annotations

from collections.abc import Iterator

from samebits.selfcheck.case import Case, Part
from samebits.selfcheck.parts.random import functions, long_streams, random_objects, speed, torch_ops


def _cases() -> Iterator[Case]:
    for module in (functions, random_objects, torch_ops, long_streams, speed):
        yield from module.cases()


PART = Part(
    "random",
    "every function of samebits.random draws the CPU's bits; ns per number against torch's",
    4,
    _cases,
)
