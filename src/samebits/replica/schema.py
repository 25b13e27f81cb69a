"""Schemas of ops, read once per op: asking torch costs more than the analysis of a node."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from torch._ops import OpOverload
from torch.fx import Node


@dataclass(frozen=True)
class Signature:
    """What the schema of an op says of its arguments."""

    name: str
    """Name with namespace and overload."""
    packet: str
    """Name without namespace and overload."""
    position: dict[str, int]
    default: dict[str, Any]
    written: tuple[str, ...]
    """Arguments that the op writes to; `outs` are those of which it does not read what was there."""
    outs: tuple[str, ...]
    returned: tuple[tuple[int, str], ...]
    """(result, argument) where a result is an argument that was written to."""


@cache
def signature(target: OpOverload) -> Signature:
    """The signature of an op."""
    schema = target._schema
    written = [one for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    returned = [
        (index, one.name)
        for index, out in enumerate(schema.returns)
        for one in written
        if out.alias_info is not None and out.alias_info.before_set & one.alias_info.before_set  # type: ignore[union-attr]
    ]
    return Signature(
        target.name(),
        schema.name.partition("::")[2],
        {one.name: position for position, one in enumerate(schema.arguments)},
        {one.name: one.default_value for one in schema.arguments},
        tuple(one.name for one in written),
        tuple(one.name for one in schema.arguments if one.is_out),
        tuple(returned),
    )


def signature_of(node: Node) -> Signature:
    """The signature of the op of a node."""
    return signature(node.target)  # type: ignore[arg-type]


def argument(node: Node, name: str) -> Any:
    """What a node gives for an argument of its op, by the name in the schema; None if there is no such argument."""
    if name in node.kwargs:
        return node.kwargs[name]
    known = signature_of(node)
    position = known.position.get(name)
    if position is None:
        return None
    return node.args[position] if position < len(node.args) else known.default[name]
