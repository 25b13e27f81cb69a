"""More numbers than 32 bits can count."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from samebits import random
from samebits.selfcheck.agreement import agree
from samebits.selfcheck.case import Case, Measured, Target

_NUMBER = 2**32 + 48
_PART = 48
_ROOM = _NUMBER + 2**30


def cases() -> Iterator[Case]:
    """Yields the case; skipped where the memory is too small."""
    room = torch.cuda.is_available() and torch.cuda.mem_get_info()[0] < _ROOM
    yield Case("more than 2**32 numbers", _many, agree, needs=("5 GiB of free GPU memory",) if room else ())


def _many(target: Target) -> Measured:
    """Measures that element i of a stream of bytes is the first one of a key moved on by i / 16 blocks."""
    end = 2**16 if target.small else 2**32
    drawn = random.bits(random.key(7, device=target.device), end + _PART, dtype=torch.uint8)
    results = {}
    for start in (0, end // 2 - 16, end // 2, end - 16, end):
        moved = torch.tensor([7, start // 16], dtype=torch.uint64, device="cpu")
        part = drawn[start : start + _PART].cpu()
        results[f"from {start}"] = {"the CPU": random.bits(moved, _PART, dtype=torch.uint8), "the GPU": part}
    return Measured(results)
