"""Finds the op at fault: each op's inputs and outputs, digested, in two runs; equal inputs must give equal outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lab.review.outcome import with_memory
from samebits import _digest as digest

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
