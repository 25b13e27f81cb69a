"""Schemas of ops, read once per op: reading them from torch costs more than the analysis of a node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node


@dataclass(frozen=True, slots=True)
class Signature:
    """The facts of an op's schema about its arguments."""

    name: str
    """Name with namespace and overload."""
    packet: str
    """Name without namespace and overload."""
    position: dict[str, int]
    default: dict[str, Any]
    written: tuple[str, ...]
    """Arguments that the op writes to; `outs` are those whose value it does not read."""
    outs: tuple[str, ...]
    returned: tuple[tuple[int, str], ...]
    """(result, argument) where a result is an argument that was written to."""
    draws: bool
    """True if it takes random numbers from a generator."""
    views: bool
    """True if its results are always views of its first argument."""

    def argument(self, node: Node, name: str) -> Any:
        """Returns the value of an argument of a node of this op, by the schema's name; None without one."""
        if name in node.kwargs:
            return node.kwargs[name]
        position = self.position.get(name)
        if position is None:
            return None
        return node.args[position] if position < len(node.args) else self.default[name]


@cache
def signature(target: OpOverload) -> Signature:
    schema = target._schema
    written = [one for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    returned = [
        (index, one.name)
        for index, out in enumerate(schema.returns)
        for one in written
        if out.alias_info is not None and out.alias_info.before_set & one.alias_info.before_set  # type: ignore[union-attr]
    ]
    name = target.name()
    return Signature(
        name,
        schema.name.partition("::")[2],
        {one.name: position for position, one in enumerate(schema.arguments)},
        {one.name: one.default_value for one in schema.arguments},
        tuple(one.name for one in written),
        tuple(one.name for one in schema.arguments if one.is_out),
        tuple(returned),
        torch.Tag.nondeterministic_seeded in target.tags and not name.startswith("aten::_philox"),
        target.is_view and torch.Tag.maybe_aliasing_or_mutating not in target.tags,
    )


def signature_of(node: Node) -> Signature:
    return signature(node.target)  # type: ignore[arg-type]


def argument(node: Node, name: str) -> Any:
    return signature_of(node).argument(node, name)
