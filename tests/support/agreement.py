"""Judges for results that must be equal, bit for bit, and their texts for differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from samebits.selfcheck.case import Results, equal


def agree(results: Results) -> Iterator[str]:
    """Yields the first difference of each result. A result is a mapping with two values or more, which must be equal."""
    for name, group in results.items():
        (first, expected), *others = group.items()
        if not others:
            yield f"{name}: there is nothing to compare with {first}"
        for other, value in others:
            if not equal(value, expected):
                yield f"{name}: {other} is not {first}: {difference(value, expected)}"


def same(results: Results) -> Iterator[str]:
    """Compares two results or more with the first one."""
    return agree({"results": results})


def difference(value: Any, expected: Any) -> str:
    """Returns in a few words where two results that are not equal differ first."""
    if isinstance(value, torch.Tensor) and isinstance(expected, torch.Tensor):
        return _of_tensors(value.detach().cpu(), expected.detach().cpu())
    if isinstance(value, Mapping) and isinstance(expected, Mapping) and value.keys() == expected.keys():
        return _of_items(value, expected, value)
    if isinstance(value, Sequence) and isinstance(expected, Sequence) and len(value) == len(expected):
        return _of_items(value, expected, range(len(value)))
    return f"{value!r:.100}, not {expected!r:.100}"


def _of_items(value: Any, expected: Any, places: Any) -> str:
    if isinstance(value, str):
        return f"{value!r:.100}, not {expected!r:.100}"
    place = next((place for place in places if not equal(value[place], expected[place])), None)
    return (
        f"a {type(value).__name__}, not a {type(expected).__name__}"
        if place is None
        else f"[{place!r}] {difference(value[place], expected[place])}"
    )


def _of_tensors(value: torch.Tensor, expected: torch.Tensor) -> str:
    if (value.dtype, value.shape) != (expected.dtype, expected.shape):
        return f"{value.dtype} {tuple(value.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    ours, theirs = (
        one.clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8).view(-1, one.itemsize)
        for one in (value, expected)
    )
    apart = (ours != theirs).any(1)
    at = int(apart.nonzero()[0])
    found, wanted = (one.reshape(-1)[at].item() for one in (value, expected))
    return f"{int(apart.sum())} of {value.numel()} elements, first [{at}]: {found!r}, not {wanted!r}"
