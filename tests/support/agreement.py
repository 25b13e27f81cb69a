"""Judges of results that must be equal, bit for bit, and results that are spoiled on purpose."""

from collections.abc import Mapping

import torch
from torch.utils import _pytree as pytree

from samebits._digest import differing, walk


def equal(first, other):
    """True if structure, shapes, dtypes and bytes agree; a NaN is a NaN, and 0 is not -0."""
    return not differing(_one_nan(first), _one_nan(other))


def _one_nan(value):
    def of_tensor(x):
        x = x.detach().cpu()
        return torch.where(x.isnan(), torch.nan, x) if x.is_floating_point() else x

    return pytree.tree_map_only(torch.Tensor, of_tensor, value)


def agree(results):
    """Yields the first difference of each result: a mapping with two values or more, which must be equal."""
    for name, group in results.items():
        (first, expected), *others = group.items()
        if not others:
            yield f"{name}: there is nothing to compare with {first}"
        for other, value in others:
            if not equal(value, expected):
                yield f"{name}: {other} is not {first}: {difference(value, expected)}"


def same(results):
    """Compares two results or more with the first one."""
    return agree({"results": results})


def all_true(results):
    """Yields each result that is not True."""
    for name, value in results.items():
        if value is not True:
            yield f"{name}: {value}"


def expected(**values):
    """A judge: each named result is as given, and there is no other."""

    def judge(results):
        for name in sorted({*values, *results}):
            if name not in results or name not in values or not equal(results[name], values[name]):
                yield f"{name} is {results.get(name)!r}, not {values.get(name)!r}"

    return judge


def difference(value, expected):
    """The place and the text of the first difference of two results that are not equal."""
    path = differing(_one_nan(value), _one_nan(expected))[0]
    found, wanted = (
        dict((at, one) for at, one, _ in walk(x)).get(path, "nothing") for x in (value, expected)
    )
    where = f"[{path}] " if path else ""
    if isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor):
        return where + _of_tensors(found.detach().cpu(), wanted.detach().cpu())
    return f"{where}{found!r:.100}, not {wanted!r:.100}"


def _of_tensors(value, expected):
    if (value.dtype, value.shape) != (expected.dtype, expected.shape):
        return f"{value.dtype} {tuple(value.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    ours, theirs = (_flat_copy(x).view(torch.uint8).view(-1, x.itemsize) for x in (value, expected))
    apart = (ours != theirs).any(1)
    at = int(apart.nonzero()[0])
    found, wanted = (x.reshape(-1)[at].item() for x in (value, expected))
    return f"{int(apart.sum())} of {value.numel()} elements, first [{at}]: {found!r}, not {wanted!r}"


def codes(x):
    """The bits of a tensor, on the CPU: payloads of NaN count."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize]
    return x.detach().cpu().clone(memory_format=torch.contiguous_format).view(kind)


def _flat_copy(x):
    """A copy of one dimension: `contiguous` allows any stride for a dimension of one element, and `view` does not."""
    return x.clone(memory_format=torch.contiguous_format).reshape(-1)


def spoil_each(results):
    """Yields each result spoiled in turn, and how: a bit of a tensor, a step of a number, another word."""
    for name, value in results.items():
        for what, spoiled in _spoil(value):
            yield f"{name}{what}", {**results, name: spoiled}


def _spoil(value):
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
    else:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, inner in items:
            for what, spoiled in _spoil(inner):
                changed = dict(value) if isinstance(value, Mapping) else list(value)
                changed[key] = spoiled
                yield f"[{key!r}]{what}", changed


def flip_lowest_bit(x):
    """A copy with the lowest bit of its last element flipped; a NaN becomes 0."""
    spoiled = _flat_copy(x.detach().cpu()).view(x.shape)
    if x.is_floating_point() and spoiled.view(-1)[-1].isnan():
        spoiled.view(-1)[-1] = 0
    elif x.dtype == torch.bool:
        spoiled.view(-1)[-1] ^= True
    else:
        spoiled.reshape(-1)[-1:].view(torch.uint8)[0] ^= 1
    return spoiled
