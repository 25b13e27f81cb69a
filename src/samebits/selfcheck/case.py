"""What a self-check is made of: parts of cases. A case measures on the device, and a judge of its own says what is wrong.

The two stand apart so that each judge can be tried without the device: `plants` spoils what was measured, one thing at a
time, and the judge must see each (`rehearsal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Results = dict[str, Any]
"""What was measured and is judged, by name: tensors, numbers, texts, truth values, and lists and dicts of these."""


@dataclass(frozen=True)
class Target:
    """Where a case measures."""

    device: str = "cuda"
    """`cuda`, or `cpu` in a rehearsal."""
    small: bool = False
    """A rehearsal: small tensors and few repeats, since only the way is tried."""
    folder: Path = Path()
    """An empty folder of the case's own, removed afterwards."""


@dataclass(frozen=True)
class Measured:
    """What a case has measured."""

    results: Results
    """What its judge looks at. Tensors on the CPU."""
    figures: dict[str, float | str] = field(default_factory=dict)
    """What the report shows besides: times, ratios, errors. Nothing here can fail."""
    goals: dict[str, bool] = field(default_factory=dict)
    """Goals of speed, and whether each was met: shown, and no failure."""


Judge = Callable[[Results], Iterable[str]]
"""What is wrong, a sentence each; nothing where all is as promised."""


@dataclass(frozen=True)
class Case:
    """One thing to try."""

    name: str
    measure: Callable[[Target], Measured]
    judge: Judge
    limit_s: float = 60.0
    """Seconds after which it has failed, warm-up and compilation included."""
    needs: tuple[str, ...] = ()
    """Packages without which it is skipped, by name."""
    example: Results | None = None
    """Results as they should be, for a rehearsal where measuring needs the device or minutes; None: it measures on the CPU."""


@dataclass(frozen=True)
class Part:
    """Cases of one subject; each part runs in processes of its own."""

    name: str
    about: str
    """One sentence."""
    minutes: float
    """How long it should take on a GPU of today."""
    cases: Callable[[], Iterable[Case]]
    """Made in the part's own process. Names are unique in the part and the same each time."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of its processes, for what is read once at the start."""


def equal(one: Any, other: Any) -> bool:
    """Whether shapes, dtypes and bytes agree; a NaN is a NaN, and 0 is not -0."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return (
            one.dtype == other.dtype and one.shape == other.shape and torch.equal(_bytes(one), _bytes(other))
        )
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and one == other


def _bytes(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().cpu()
    if x.is_floating_point():
        x = torch.where(x.isnan(), torch.nan, x)
    return _in_a_row(x).view(torch.uint8)


def _in_a_row(x: torch.Tensor) -> torch.Tensor:
    """A copy of one dimension; `contiguous` lets the stride of a dimension of one element be anything, and `view` does not."""
    return x.clone(memory_format=torch.contiguous_format).reshape(-1)


def expected(**values: Any) -> Judge:
    """A judge: each named result is as given, and there is no other."""

    def judge(results: Results) -> Iterator[str]:
        for name in sorted({*values, *results}):
            if name not in results or name not in values or not equal(results[name], values[name]):
                yield f"{name} is {results.get(name)!r}, not {values.get(name)!r}"

    return judge


def plants(results: Results) -> Iterator[tuple[str, Results]]:
    """Each result spoiled in turn, and what was done to it: one bit of a tensor, one step of a number, another word."""
    for name, value in results.items():
        for what, spoiled in _spoiled(value):
            yield f"{name}{what}", {**results, name: spoiled}


def _spoiled(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        if value.numel():
            yield f": a bit of element {value.numel() - 1}", flipped(value)
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
            for what, spoiled in _spoiled(inner):
                yield f"[{key!r}]{what}", {**value, key: spoiled}
    else:
        for number, inner in enumerate(value):
            for what, spoiled in _spoiled(inner):
                yield f"[{number}]{what}", [*value[:number], spoiled, *value[number + 1 :]]


def flipped(x: torch.Tensor) -> torch.Tensor:
    """A copy with the lowest bit of its last element flipped; a NaN becomes 0."""
    spoiled = _in_a_row(x.detach().cpu()).view(x.shape)
    if x.is_floating_point() and spoiled.view(-1)[-1].isnan():
        spoiled.view(-1)[-1] = 0
    elif x.dtype == torch.bool:
        spoiled.view(-1)[-1] ^= True
    else:
        spoiled.reshape(-1)[-1:].view(torch.uint8)[0] ^= 1
    return spoiled
