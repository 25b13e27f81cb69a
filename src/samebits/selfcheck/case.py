"""The contents of a self-check: parts of cases. A case measures on the device, and its judge names what is wrong.

The two are separate so that each judge can be tested without the device: `spoil_each` spoils the measurements, one thing at
a time, and the judge must see each (`rehearsal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Results = dict[str, Any]
"""The judged measurements by name: tensors, numbers, texts, truth values, and lists and dicts of these."""


@dataclass(frozen=True)
class Target:
    """The device and folder in which a case measures."""

    device: str = "cuda"
    """`cuda`, or `cpu` in a rehearsal."""
    small: bool = False
    """A rehearsal: small tensors and few repeats, since only the procedure is tested."""
    folder: Path = Path()
    """An empty folder of the case, removed afterwards."""


@dataclass(frozen=True)
class Measured:
    """The measurements of a case."""

    results: Results
    """The input of its judge. Tensors on the CPU."""
    figures: dict[str, float | str] = field(default_factory=dict)
    """Further figures for the report: times, ratios, errors. Nothing here can fail."""
    goals: dict[str, bool] = field(default_factory=dict)
    """Goals of speed; True if met: shown, and no failure."""


Judge = Callable[[Results], Iterable[str]]
"""Yields what is wrong, a sentence each; nothing where all is as promised."""


@dataclass(frozen=True)
class Case:
    """One check."""

    name: str
    measure: Callable[[Target], Measured]
    judge: Judge
    limit_s: float = 60.0
    """Seconds after which it has failed, warm-up and compilation included."""
    needs: tuple[str, ...] = ()
    """Packages without which it is skipped, by name."""
    example: Results | None = None
    """Correct results, for a rehearsal where measuring needs the device or minutes; None: it measures on the CPU."""


@dataclass(frozen=True)
class Part:
    """Cases of one subject; each part runs in its own processes."""

    name: str
    about: str
    """One sentence."""
    minutes: float
    """The expected time on a current GPU."""
    cases: Callable[[], Iterable[Case]]
    """Makes the cases in the part's own process. Names are unique in the part and the same each time."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its processes, for settings that are read once at the start."""


def equal(first: Any, other: Any) -> bool:
    """Returns True if shapes, dtypes and bytes agree; a NaN is a NaN, and 0 is not -0."""
    if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor):
        return (
            first.dtype == other.dtype
            and first.shape == other.shape
            and torch.equal(_bytes(first), _bytes(other))
        )
    if isinstance(first, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(first) == len(other) and all(map(equal, first, other))
    if isinstance(first, Mapping) and isinstance(other, Mapping):
        return first.keys() == other.keys() and all(equal(first[key], other[key]) for key in first)
    return type(first) is type(other) and first == other


def _bytes(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().cpu()
    if x.is_floating_point():
        x = torch.where(x.isnan(), torch.nan, x)
    return _flat_copy(x).view(torch.uint8)


def _flat_copy(x: torch.Tensor) -> torch.Tensor:
    """Returns a copy of one dimension; `contiguous` allows any stride for a dimension of one element, and `view` does not."""
    return x.clone(memory_format=torch.contiguous_format).reshape(-1)


def expected(**values: Any) -> Judge:
    """Returns a judge: each named result is as given, and there is no other."""

    def judge(results: Results) -> Iterator[str]:
        for name in sorted({*values, *results}):
            if name not in results or name not in values or not equal(results[name], values[name]):
                yield f"{name} is {results.get(name)!r}, not {values.get(name)!r}"

    return judge


def spoil_each(results: Results) -> Iterator[tuple[str, Results]]:
    """Yields each result spoiled in turn, and how: one bit of a tensor, one step of a number, another word."""
    for name, value in results.items():
        for what, spoiled in _spoil(value):
            yield f"{name}{what}", {**results, name: spoiled}


def _spoil(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        if value.numel():
            yield f": a bit of element {value.numel() - 1}", flip_lowest_bit(value)
    elif isinstance(value, bool):
        yield f": {not value}", not value
    elif isinstance(value, int):
        yield f": {value + 1}", value + 1
    elif isinstance(value, float):
        yield ": 1000 times as large", (abs(value) + 1.0) * 1000
    elif isinstance(value, str):
        yield ": another text", f"{value} (another)"
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            for what, spoiled in _spoil(inner):
                yield f"[{key!r}]{what}", {**value, key: spoiled}
    else:
        for number, inner in enumerate(value):
            for what, spoiled in _spoil(inner):
                yield f"[{number}]{what}", [*value[:number], spoiled, *value[number + 1 :]]


def flip_lowest_bit(x: torch.Tensor) -> torch.Tensor:
    """Returns a copy with the lowest bit of its last element flipped; a NaN becomes 0."""
    spoiled = _flat_copy(x.detach().cpu()).view(x.shape)
    if x.is_floating_point() and spoiled.view(-1)[-1].isnan():
        spoiled.view(-1)[-1] = 0
    elif x.dtype == torch.bool:
        spoiled.view(-1)[-1] ^= True
    else:
        spoiled.reshape(-1)[-1:].view(torch.uint8)[0] ^= 1
    return spoiled
