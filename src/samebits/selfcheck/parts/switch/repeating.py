"""One case of the battery, run again and again on the device: the changes between the runs, and the comparison of bits."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from lab.catalogue.case import Run
from lab.review.outcome import SEED, disturb, with_memory
from samebits.selfcheck.case import Target, equal
from samebits.selfcheck.device_faults import is_fault

_RUNS, _FEW = 20, 3
_FILL = 1 << 26
"""Bytes that are written to fill the caches: more than the largest L2."""


@dataclass
class RepeatedCase:
    """One case of the battery, run again and again with the switch on, or off."""

    others: int = 0
    """The number of runs without the bits of the first on the same kind of stream."""
    on_another_stream: bool = False
    """Whether runs on a stream other than the default one have bits of their own."""
    seconds: list[float] = field(default_factory=list)
    error: Exception | None = None

    @property
    def varied(self) -> bool:
        """Returns True if two runs differed."""
        return self.others > 0


def repeat_case(runs: Sequence[Run], target: Target) -> RepeatedCase:
    """Runs the samples of a case `_RUNS` times each. An exception is kept; a fault of the device is raised."""
    found = RepeatedCase()
    try:
        for run in runs:
            _repeat(run, found, target)
    except Exception as error:
        found.error = raise_if_fault(error).with_traceback(None)  # whose frames hold tensors
    return found


def first_line_of(error: Exception) -> str:
    """Returns the first line of an error; a fault of the device is raised, since nothing after it means anything."""
    raise_if_fault(error)
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def raise_if_fault(error: Exception) -> Exception:
    """Returns the error, or raises it if it is a fault of the device."""
    if is_fault(error):
        raise error
    return error


def _repeat(run: Run, case: RepeatedCase, target: Target) -> None:
    first: dict[bool, list[Tensor]] = {}
    with torch.device(target.device):
        for number in range(_FEW if target.small else _RUNS):
            moved, side_stream = _disturb(number, target), number % 4 == 3
            with _stream(target.device, side_stream=side_stream):
                output, seconds = _timed(run, target.device)
            del moved
            bits = leaves(output)
            if number:  # the time of the first is that of warming up
                case.seconds.append(seconds)
            case.others += not all_bits_equal(first.setdefault(side_stream, bits), bits)
            case.on_another_stream |= not all_bits_equal(first[False], first[side_stream])


def _timed(run: Run, device: str) -> tuple[Any, float]:
    torch.manual_seed(SEED)
    _wait(device)
    start = time.perf_counter()
    output = run()
    _wait(device)
    return output, time.perf_counter() - start


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _disturb(number: int, target: Target) -> Any:
    """Changes memory: other bytes in freed blocks, blocks that move the next ones, and every other time full caches."""
    held = disturb(number)
    if number % 2 and not target.small:
        torch.full((_FILL,), number, dtype=torch.uint8)
    return held


def _stream(device: str, *, side_stream: bool) -> Any:
    """Returns another stream or the default one; all work before has ended, and so has the run when it is compared."""
    return torch.cuda.stream(_side_stream()) if device == "cuda" and side_stream else nullcontext()


@cache
def _side_stream() -> torch.cuda.Stream:
    return torch.cuda.Stream()


def leaves(output: Any) -> list[Tensor]:
    """Returns the tensors of an output that hold bits."""
    found: list[Tensor] = []
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, Tensor):
            found += _parts(with_memory(leaf.detach()))
    return found


def _parts(x: Tensor) -> list[Tensor]:
    """Returns the strided tensors that hold the bits; coalescing first would add the compared values."""
    if x.layout is torch.sparse_coo:
        return [x._indices(), x._values()]
    if x.layout is torch.sparse_csr:
        return [x.crow_indices(), x.col_indices(), x.values()]
    return [x]


def all_bits_equal(first: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Returns True if all bits agree, compared on the tensors' device; a NaN is a NaN, whatever its other bits."""
    return len(first) == len(other) and all(map(_alike, first, other))


def _alike(first: Tensor, other: Tensor) -> bool:
    if first.shape != other.shape or first.dtype != other.dtype:
        return False
    if first.is_complex():
        first, other = (torch.view_as_real(x.resolve_conj().resolve_neg()) for x in (first, other))
    if not first.is_floating_point():
        return torch.equal(first, other)
    if first.itemsize not in _WORDS:
        return equal(first, other)
    same = first.contiguous().view(_WORDS[first.itemsize]) == other.contiguous().view(_WORDS[first.itemsize])
    return bool((same | (first.isnan() & other.isnan()).contiguous()).all())


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
