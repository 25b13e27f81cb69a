"""The cases of `samebits ops --review` on the GPU: under the switch the same bits in twenty runs, or refused with the way out.

Between the runs, memory is taken so that addresses move, the caches are filled with other things, and every fourth run is
on another stream. The same without the switch says how much of it would have varied, and what the switch costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from samebits.audit.review.case import Case as Reviewed
from samebits.audit.review.case import Run, built_on
from samebits.audit.review.cases import BATTERY
from samebits.audit.review.outcome import SEED, disturb, with_memory
from samebits.determinism import enable_op_determinism
from samebits.errors import UnimplementedError
from samebits.random import set_random_seed
from samebits.selfcheck.case import Case, Measured, Place, Results, equal
from samebits.selfcheck.parts.switch import attention

SAME, REFUSED, ELSEWHERE = "the same bits", "refused with the way out", "does not run on this device"
NO_BACKEND = "torch offers no such backend under the switch"
_TORCHS_NO_BACKEND = "No available kernel"
"""What torch says where `sdpa_kernel` asks for a backend which it leaves out under its flag (cuDNN's)."""
_ELSEWHERE = frozenset({"compiled"})
"""Groups of the battery that another part tries: compiled code."""
_RUNS, _FEW = 20, 3
_AT_ONCE = 12
"""Cases of the battery in one of ours: a fault of the device costs so many."""
_CONTROL_RUNS = 60
_FILL = 1 << 26
"""Bytes that are written to fill the caches: more than the largest L2."""


def reviewed() -> list[Reviewed]:
    """The cases, those for a GPU's attention included."""
    return [one for one in (*BATTERY, *attention.CASES) if one.group not in _ELSEWHERE]


def cases() -> Iterator[Case]:
    """The battery, a dozen at a time."""
    for group in dict.fromkeys(one.group for one in reviewed()):
        members = [one for one in reviewed() if one.group == group]
        for number, some in enumerate(_batches(members), 1):
            example: Results = {one.name: SAME for one in some}
            yield Case(f"{group} {number}", partial(_measure, some), judge, 280, example=example)


def controls() -> Iterator[Case]:
    """Without the switch something varies: else twenty equal runs would say nothing."""
    example: Results = {"something varied": True}
    yield Case(
        "control: sums by atomics vary without the switch", _control, _judge_control, 120, example=example
    )


def judge(results: Results) -> Iterator[str]:
    """Whatever is not the same, refused with the way out, or no op of the device's is wrong."""
    for name, word in results.items():
        if word not in {SAME, REFUSED, ELSEWHERE, NO_BACKEND}:
            yield f"{name}: {word}"


@dataclass
class Repeated:
    """One case of the battery, run again and again with the switch on, or off."""

    others: int = 0
    """How many runs did not have the bits of the first."""
    seconds: list[float] = field(default_factory=list)
    error: Exception | None = None

    @property
    def varied(self) -> bool:
        """Whether two runs differed."""
        return self.others > 0


def _measure(some: Sequence[Reviewed], place: Place) -> Measured:
    results: Results = {}
    ratios: dict[str, float] = {}
    varied: list[str] = []
    set_random_seed(0)
    for one in some:
        try:
            with built_on(place.device):
                runs = list(one.build())
        except Exception as error:
            results[one.name] = f"could not be built: {_raised(error)}"
            continue
        with enable_op_determinism():
            on = repeated(runs, place)
        off = repeated(runs, place)
        results[one.name] = word(on, off)
        if off.varied:
            varied.append(one.name)
        if on.seconds and off.seconds:
            ratios[one.name] = median(on.seconds) / max(median(off.seconds), 1e-9)
    return Measured(results, _figures(results, ratios, varied))


def word(on: Repeated, off: Repeated) -> str:
    """What the judge looks at."""
    if on.error is None:
        return f"{on.others} of {len(on.seconds)} further runs had other bits" if on.varied else SAME
    text = str(on.error)
    if isinstance(on.error, UnimplementedError):
        return REFUSED if "Use " in text else f"refused without the way out: {text}"
    if off.error is not None and "determinis" not in text:
        return ELSEWHERE
    if _TORCHS_NO_BACKEND in text:
        return NO_BACKEND
    return f"under the switch {_raised(on.error)}"


def repeated(runs: Sequence[Run], place: Place) -> Repeated:
    """Runs the samples of a case `_RUNS` times each. What one raises is kept; a fault of the device is raised."""
    found = Repeated()
    try:
        for run in runs:
            _repeat(run, found, place)
    except Exception as error:
        found.error = _unless_fault(error)
    return found


def _raised(error: Exception) -> str:
    """The first line of an error; a fault of the device is raised, since nothing behind it means anything."""
    _unless_fault(error)
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}"


def _unless_fault(error: Exception) -> Exception:
    fault = isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
    if fault and not isinstance(error, torch.cuda.OutOfMemoryError):
        raise error
    return error


def _repeat(run: Run, found: Repeated, place: Place) -> None:
    first: list[Tensor] | None = None
    with torch.device(place.device):
        for number in range(_FEW if place.small else _RUNS):
            moved = _disturb(number, place)
            with _stream(number, place.device):
                output, seconds = _timed(run, place.device)
            del moved
            leaves = _leaves(output)
            if first is None:
                first = leaves
                continue  # its time is that of warming up
            found.seconds.append(seconds)
            found.others += not alike(first, leaves)


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


def _disturb(number: int, place: Place) -> Any:
    """Other bytes in freed blocks, blocks that move the next ones, and every other time the caches full of other things."""
    held = disturb(number)
    if number % 2 and not place.small:
        torch.full((_FILL,), number, dtype=torch.uint8)
    return held


def _stream(number: int, device: str) -> Any:
    """Every fourth run is on a stream of its own; all work before has ended, and so has its own when it is compared."""
    return torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" and number % 4 == 3 else nullcontext()


def _leaves(output: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, Tensor):
            found += _parts(with_memory(leaf.detach()))
    return found


def _parts(x: Tensor) -> list[Tensor]:
    """The strided tensors that hold the bits; coalescing first would add what is compared."""
    if x.layout is torch.sparse_coo:
        return [x._indices(), x._values()]
    if x.layout is torch.sparse_csr:
        return [x.crow_indices(), x.col_indices(), x.values()]
    return [x]


def alike(first: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether all bits agree, compared where the tensors are; a NaN is a NaN, whatever its other bits."""
    return len(first) == len(other) and all(map(_alike, first, other))


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_complex():
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
    if not one.is_floating_point():
        return torch.equal(one, other)
    if one.itemsize not in _WORDS:
        return equal(one, other)
    same = one.contiguous().view(_WORDS[one.itemsize]) == other.contiguous().view(_WORDS[one.itemsize])
    return bool((same | (one.isnan() & other.isnan()).contiguous()).all())


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _figures(results: Results, ratios: dict[str, float], varied: Sequence[str]) -> dict[str, float | str]:
    """Counts, names, and what the switch costs: the time of a run over that without it, medians."""
    figures: dict[str, float | str] = {
        "cases": len(results),
        "varied without the switch": f"{len(varied)} ({', '.join(varied)})" if varied else "0",
    }
    for title, one in (("refused", REFUSED), ("no backend", NO_BACKEND), ("not on this device", ELSEWHERE)):
        if names := [name for name, found in results.items() if found == one]:
            figures[title] = f"{len(names)} ({', '.join(names)})"
    if ratios:
        worst = max(ratios, key=lambda name: ratios[name])
        figures |= {"cost, median": median(ratios.values()), "cost, most": ratios[worst], "of": worst}
    return figures


def _batches(members: Sequence[Reviewed]) -> Iterator[Sequence[Reviewed]]:
    return (members[start : start + _AT_ONCE] for start in range(0, len(members), _AT_ONCE))


def _control(place: Place) -> Measured:
    """Sums of many numbers in few places, without the switch: torch's kernels add with atomics."""
    draw = torch.Generator().manual_seed(0)
    source = torch.randn(1 << 20, generator=draw).to(place.device)
    index = torch.randint(8, (1 << 20,), generator=draw).to(place.device)
    empty = torch.zeros(8, device=place.device)
    sums: dict[str, Callable[[], Tensor]] = {
        "index_add": lambda: empty.index_add(0, index, source),
        "scatter_add": lambda: empty.scatter_add(0, index, source),
        "index_put": lambda: empty.index_put((index,), source, accumulate=True),
        "bincount": lambda: torch.bincount(index, source),
    }
    counts = {}
    for name, run in sums.items():
        first = run()
        counts[name] = sum(not alike([first], [run()]) for _ in range(_CONTROL_RUNS))
    shown = ", ".join(f"{name} {count}" for name, count in counts.items())
    return Measured(
        {"something varied": any(counts.values())}, {f"other bits in {_CONTROL_RUNS} runs": shown}
    )


def _judge_control(results: Results) -> Iterator[str]:
    if results["something varied"] is not True:
        yield "no sum varied without the switch: here equal runs prove nothing of atomics"
