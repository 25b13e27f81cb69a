"""The overloads of the torch that is running, and their differences from the reviewed ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from samebits.determinism._dispatcher import overload
from samebits.determinism._reviewed_schemas import schema_digest
from samebits.determinism.table._overload_facts import ReviewedOverloads

_TAGS = {"nondeterministic_seeded", "pointwise", "reduction", "view_copy", "inplace_view"}
_INPLACE = re.compile(r"aten::(__i\w+__|\w*[^_]_)")
"""Names of ops that write to their first argument; torch has a tag for it since 2.13."""


@dataclass(frozen=True)
class LiveOverload:
    """The facts of the running torch about one overload."""

    name: str
    schema: str
    traits: tuple[str, ...]
    form_of: str


def live_overloads() -> dict[str, LiveOverload]:
    """Returns every aten overload of the running torch, by name without `aten::`."""
    ops = list(_aten_ops())
    functional = _functional_forms(ops)
    found = (
        LiveOverload(
            _name(op), schema_digest(str(op._schema)), _traits(op), functional.get(_signature(op), _name(op))
        )
        for op in ops
    )
    return {one.name: one for one in found}


def unreviewed(snapshot: ReviewedOverloads, live: dict[str, LiveOverload]) -> Iterator[str]:
    """Yields one line for each overload that is new, gone or changed since the review, as `new: aten::sum.dim_IntList`."""
    for name in sorted({*live, *snapshot.rows}):
        now, then = live.get(name), snapshot.rows.get(name)
        if then is None:
            yield f"new: aten::{name}"
        elif now is None:
            yield f"gone: aten::{name}"
        elif now.schema != then.schema:
            yield f"schema changed: aten::{name}"
        elif now.traits != then.traits:
            yield f"tags changed: aten::{name}: {' '.join(then.traits)} then, {' '.join(now.traits)} now"


def _aten_ops() -> Iterator[torch._ops.OpOverload]:
    """Yields every aten overload of this torch. (`dir(torch.ops.aten)` lists only those already looked up.)"""
    for full in torch._C._dispatch_get_all_op_names():
        if full.startswith("aten::"):
            try:
                yield overload(full)
            except (AttributeError, RuntimeError):  # TorchScript-only names
                continue


def _name(op: torch._ops.OpOverload) -> str:
    return op.name().removeprefix("aten::")


def _traits(op: torch._ops.OpOverload) -> tuple[str, ...]:
    found = {tag.name for tag in op.tags} & _TAGS
    schema = op._schema
    if any(argument.is_out for argument in schema.arguments):
        found.add("out")
    elif schema.is_mutable and _INPLACE.fullmatch(schema.name):
        found.add("inplace")
    if any(out.alias_info is not None and not out.alias_info.is_write for out in schema.returns):
        found.add("view")
    if not any("Tensor" in str(argument.type) for argument in schema.arguments) and schema.returns:
        found.add("factory")
    return tuple(sorted(found))


def _functional_forms(ops: list[torch._ops.OpOverload]) -> dict[tuple[str, ...], str]:
    """Returns the functional overload of each signature that in-place and out forms share with it."""
    names = defaultdict(list)
    for op in ops:
        if not op._schema.is_mutable:
            names[_signature(op)].append(_name(op))
    return {signature: found[0] for signature, found in names.items() if len(found) == 1}


def _signature(op: torch._ops.OpOverload) -> tuple[str, ...]:
    packet = op._schema.name.removeprefix("aten::")
    own = packet if packet.startswith("__") else packet.rstrip("_")
    inputs = (argument for argument in op._schema.arguments if not argument.is_out)
    return own, *(f"{argument.type} {argument.name}" for argument in inputs)
