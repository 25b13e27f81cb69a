"""Random numbers: every function draws on the GPU the bits of the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from samebits import random
from samebits.selfcheck.case import Case, Measured, Part, Place, same


def _uniform(place: Place) -> Measured:
    key = random.key(3)
    return Measured(
        {"the CPU": random.uniform(key, 1000), "the GPU": random.uniform(key.to(place.device), 1000).cpu()}
    )


def _cases() -> Iterator[Case]:
    yield Case("uniform", _uniform, same)


PART = Part("random", "every function of samebits.random draws the CPU's bits", 2, _cases)
