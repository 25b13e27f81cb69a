"""Runs that are compared: a sample at every thread count, and each op inside it, whose equal inputs must give equal outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lab.catalogue.case import Run
from lab.catalogue.elementwise import differing_elements
from samebits import _digest as digest

REPEATED_AT = 2
"""The thread count at which a case is repeated."""
SEED = 0


class SampleDigests:
    """The digests of one sample at every thread count."""

    def __init__(self, run: Run, repeats: int, counts: Sequence[int]) -> None:
        self.largest = 0.0
        """The largest difference between two outputs, relative to the largest value."""
        self.only_nan = True
        """Whether outputs that differ do so in the bits of a NaN only; no op promises these."""
        self._first: tuple[Any, str] | None = None
        self._seen: dict[int, dict[str, None]] = {count: {} for count in counts}
        for count in counts:
            for number in range(repeats if count == REPEATED_AT else 1):
                self._once(run, count, number)

    def _once(self, run: Run, count: int, number: int) -> None:
        moved = disturb(number)
        output = run_at(run, count)
        del moved
        found = digest.of_value(output)
        if self._first is None:
            self._first = output, found
        elif found != self._first[1]:
            self.largest = max(self.largest, _relative(self._first[0], output))
            self.only_nan = self.only_nan and _same_but_for_nan(self._first[0], output)
        self._seen[count][found] = None

    @property
    def runs_equal(self) -> bool:
        """Returns True if the runs at the same thread count gave the same bytes."""
        return all(len(found) == 1 for found in self._seen.values())

    @property
    def threads_equal(self) -> bool:
        """Returns True if the first runs at all thread counts gave the same bytes."""
        return len({next(iter(found)) for found in self._seen.values()}) == 1

    def classes(self) -> str:
        """Thread counts that agree, as `1 | 2 4 | 3 | 8`."""
        groups: dict[str, list[str]] = {}
        for count, found in self._seen.items():
            groups.setdefault(next(iter(found)), []).append(str(count))
        return " | ".join(" ".join(group) for group in groups.values())


def run_at(run: Run, count: int) -> Any:
    """Runs once at a thread count, from the same state of torch's generator."""
    torch.set_num_threads(count)
    # 20 times faster than torch.manual_seed, which tells all devices
    torch.default_generator.manual_seed(SEED)
    return pytree.tree_map(_detached, run())


def disturb(number: int) -> list[torch.Tensor]:
    """Leaves other bytes in freed blocks of many sizes, and holds blocks that move the next allocations."""
    for size in (2, 4, 8, 16, 32, 64, 1024, 16384):
        torch.full((size,), 7.0 * number + size)
    return [torch.empty(1 + 7919 * (number + place)) for place in range(number % 3)]


def _detached(leaf: Any) -> Any:
    return with_memory(leaf.detach()) if isinstance(leaf, torch.Tensor) else leaf


def with_memory(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor; autograd's zeros that have no memory, and so no bytes, are written out."""
    return tensor.clone() if tensor._is_zerotensor() else tensor


def _relative(one: Any, other: Any) -> float:
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=False)
    return max((_gap(mine, theirs) for mine, theirs in pairs if isinstance(mine, torch.Tensor)), default=0.0)


def _same_but_for_nan(one: Any, other: Any) -> bool:
    pairs = zip(pytree.tree_leaves(one), pytree.tree_leaves(other), strict=False)
    return all(
        mine.layout is theirs.layout is torch.strided
        and mine.shape == theirs.shape
        and not differing_elements(mine, theirs).any()
        for mine, theirs in pairs
        if isinstance(mine, torch.Tensor)
    )


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest difference relative to the largest value; NaN bits alone give 0."""
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    if not one.numel() or one.shape != other.shape:
        return 0.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    one, other = one.to(wide), other.to(wide)
    scale = one.abs().nan_to_num(0.0, 0.0).max().item() or 1.0
    return (one - other).abs().nan_to_num(0.0, 0.0).max().item() / scale


_UNWRITTEN = ("aten::empty", "aten::new_empty", "aten::resize", "aten::_empty", "aten::set_")
"""Their outputs are memory that nobody wrote, so that they have no bytes to compare."""


@dataclass(frozen=True)
class OpCall:
    """One call of one overload: digests of what it read and of what it returned or wrote."""

    op: str
    read: str
    wrote: str


class Names(TorchDispatchMode):
    """Collects the overloads that are dispatched, those inside composite ops included."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[func.name()] = None
        return func(*args, **(kwargs or {}))


class OpTrace(TorchDispatchMode):
    """Digests each call. An op that overrides another one below autograd is one call: what it runs is not seen."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[OpCall] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.is_view or func.name().startswith(_UNWRITTEN):
            return func(*args, **kwargs)
        written = list(_written(func, args, kwargs))
        buffers = {id(value) for value, is_out in written if is_out}
        read = [
            None if id(leaf) in buffers else _settled(leaf) for leaf in pytree.tree_leaves((args, kwargs))
        ]
        read_digest = digest.of_value(read)
        result = func(*args, **kwargs)
        wrote = [_settled(leaf) for leaf in pytree.tree_leaves((result, [value for value, _ in written]))]
        self.calls.append(OpCall(func.name(), read_digest, digest.of_value(wrote)))
        return result


def at_fault(one: Sequence[OpCall], other: Sequence[OpCall]) -> set[str]:
    """Overloads that read equal bytes and wrote different ones; compared as long as both made the same calls."""
    found = set()
    for mine, theirs in zip(one, other, strict=False):
        if mine.op != theirs.op:
            break
        if mine.read == theirs.read and mine.wrote != theirs.wrote:
            found.add(mine.op)
    return found


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, bool]]:
    """The tensors that a call writes to, and whether it does so without reading them (`out=`)."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            for leaf in pytree.tree_leaves(value):
                yield leaf, argument.is_out


def _settled(leaf: Any) -> Any:
    """A leaf whose digest depends on its value alone."""
    if isinstance(leaf, torch.Tensor):
        return with_memory(leaf)
    if isinstance(leaf, int | float | bool | str) or leaf is None:
        return leaf
    return repr(leaf) if isinstance(leaf, torch.dtype | torch.layout | torch.device) else type(leaf).__name__
