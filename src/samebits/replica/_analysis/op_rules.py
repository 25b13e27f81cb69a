"""Reads, writes and draws of each op, from its schema, its tags, the op table and a few exceptions here."""

from __future__ import annotations

import operator
from collections.abc import Collection, Hashable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from samebits._inspect.words import words
from samebits.determinism import table
from samebits.determinism._guards import custom_ops
from samebits.determinism.table._verdict_names import UNWRITTEN
from samebits.errors import InvalidArgumentError
from samebits.replica._analysis.collectives import COLLECTIVES, Collective
from samebits.replica._analysis.memory import ByteRange
from samebits.replica._analysis.op_schemas import Signature, argument, signature, signature_of
from samebits.replica._analysis.storage_layout import StorageLayout, is_sparse, tensors

_SHAPE_ONLY = words(
    """zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones
    new_full new_empty new_empty_strided zero_ fill_ uniform_ normal_ bernoulli_ random_ exponential_
    geometric_ cauchy_ log_normal_ copy_ _philox_uniform_ _philox_normal_"""
)
"""Ops that need only the shape of their first argument: where they write it, nothing of its value remains."""
_COUNTED = words(
    """rand rand_like randn randn_like randint randint_like randperm uniform_ normal_ normal bernoulli
    bernoulli_ random_ exponential_ geometric_ cauchy_ log_normal_ native_dropout dropout
    multinomial"""
)
"""Random ops that take as many words from the generator as the shapes say, whatever the data."""
SEED = "generator:samebits"
"""The seed of the process, or key of the run, for `samebits.rounding.optim`. No draw moves it."""
_BATCH_NORMS = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm")
_SILENT_WRITES = {f"aten::{name}": ("running_mean", "running_var") for name in _BATCH_NORMS}
"""Arguments that are written in training, though the schema does not say so."""
_UNTRACKED = frozenset({"set_", "resize_", "resize_as_", "set_data"})
"""Ops that give a tensor another storage."""


class Flow(NamedTuple):
    """Outputs that depend on these inputs only."""

    reads: tuple[Node, ...]
    writes: tuple[ByteRange, ...]
    writers: tuple[Node, ...] = ()
    """The arguments that the op is known to write to. `writes` may hold more: what the op could reach."""


@dataclass(slots=True)
class OpEffects:
    """The effects of an op on equality."""

    flows: list[Flow]
    collective: Collective | None = None
    nondeterminism: str = ""
    """The reason why equal inputs need not give equal outputs."""
    generator: ByteRange | None = None
    counted: bool = True
    unknown: bool = False
    """True if nothing is known of the op, which is reported."""
    indices: tuple[Node, ...] = field(default=())
    """Numbers that come from tensors: the offsets of a view."""
    is_view: bool = False


def plan_of(node: Node, layout: StorageLayout) -> OpEffects:
    """Returns the effects of a `call_function` node that is no higher-order op."""
    operands = tuple(node.all_input_nodes)
    numbers = tuple([one for one in operands if not layout.places[one]])
    outputs = layout.places[node]
    given = _storages(operands, layout)
    aliases = bool(outputs) and all(place.storage in given for place in outputs)
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        is_known = target is operator.getitem or not outputs
        fresh = () if aliases else outputs
        return OpEffects([Flow(operands, fresh)], indices=numbers, is_view=aliases, unknown=not is_known)
    known = signature(target)
    collective = COLLECTIVES.get(known.name)
    if collective is not None:
        flows = list(_collective_flows(node, layout, collective))
        return OpEffects(_merge_overlapping(flows, layout), collective)
    written = {one: None for name in written_names(node, known) for one in _nodes(known.argument(node, name))}
    plan = OpEffects(
        _merge_overlapping(list(_flows(node, known, layout, operands, written, given)), layout),
        nondeterminism=_nondeterminism(node, target) if outputs or known.written else "",
        generator=_generator(node, known),
        counted=known.packet in _COUNTED and all(map(_static, operands)),
        indices=numbers,
        is_view=aliases and not written,
    )
    sparse = [one for one in operands if is_sparse(one)]
    if sparse or is_sparse(node):  # its values and indices are tensors with memory that others share
        touched = tuple(place.anywhere() for one in (*sparse, *written) for place in layout.places[one])
        plan.flows = [Flow(operands, (*touched, *outputs), tuple(written))]
        plan.nondeterminism, plan.unknown, plan.is_view = (
            f"{target.name()}: sparse tensors are not followed",
            True,
            False,
        )
    if known.packet in _UNTRACKED or (target.namespace == "c10d" and known.packet != "barrier"):
        everything = tuple(place.anywhere() for one in operands for place in layout.places[one])
        writers = operands if known.packet in _UNTRACKED or known.packet.endswith("_") else ()
        plan.flows = [Flow(operands, (*everything, *outputs), writers)]
        plan.nondeterminism, plan.unknown = f"{target.name()} is not followed", True
    return plan


def _storages(operands: tuple[Node, ...], layout: StorageLayout) -> AbstractSet[Hashable]:
    """Returns the memory of the operands.

    That of one operand is not copied: each item of a list needs that of the whole list.
    """
    if len(operands) == 1:
        return layout.storages(operands[0])
    return {place.storage for one in operands for place in layout.places[one]}


def _merge_overlapping(flows: list[Flow], layout: StorageLayout) -> list[Flow]:
    """Merges flows that share memory which one of them writes: their order is not known."""
    if len(flows) < 2:
        return flows
    users: dict[Any, set[int]] = {}
    for index, flow in enumerate(flows):
        for place in (*flow.writes, *(place for one in flow.reads for place in layout.places[one])):
            users.setdefault(place.storage, set()).add(index)
    if all(len(users[place.storage]) == 1 for flow in flows for place in flow.writes):
        return flows
    parts = (
        (one for flow in flows for one in getattr(flow, name)) for name in ("reads", "writes", "writers")
    )
    return [Flow(*(tuple(dict.fromkeys(part)) for part in parts))]


def _flows(
    node: Node,
    known: Signature,
    layout: StorageLayout,
    operands: tuple[Node, ...],
    written: Collection[Node],
    operand_storages: AbstractSet[Hashable],
) -> Iterator[Flow]:
    fresh = [place for place in layout.places[node] if place.storage not in operand_storages]
    rows = _rows(node) if known.packet.startswith(("_foreach_", "_fused_")) else None
    if rows is not None and len(fresh) in {0, len(rows)}:
        listed = {one for row in rows for one in row}
        common = tuple(one for one in operands if one not in listed)
        for index, row in enumerate(rows):
            targets = tuple(one for one in row if one in written)
            places = tuple(place for one in targets for place in layout.places[one])
            yield Flow((*row, *common), (*places, *fresh[index : index + 1]), targets)
        return
    places = [place for one in written for place in layout.places[one]]
    if known.outs:  # the result is longer than an `out` that the op made room in
        shared = [place for place in layout.places[node] if place.storage in operand_storages]
        places += [place for place in shared if place not in places]
    yield Flow(_read(node, known, operands), (*places, *fresh), tuple(written))


def _collective_flows(node: Node, layout: StorageLayout, collective: Collective) -> Iterator[Flow]:
    sources = _nodes(argument(node, collective.reads))
    targets = _nodes(argument(node, collective.writes)) if collective.writes else []
    results = [(place,) for place in layout.places[node]] if not targets else []
    written = [layout.places[one] for one in targets] or results
    if collective.per_tensor and len(sources) == len(written):
        for index, (source, places) in enumerate(zip(sources, written, strict=True)):
            yield Flow((source,), places, tuple(targets[index : index + 1]))
    else:
        yield Flow(tuple(sources), tuple(place for places in written for place in places), tuple(targets))


def is_collective(node: Node) -> bool:
    """Returns True if the op of a node moves or reduces data over ranks."""
    return hasattr(node.target, "name") and str(node.target.name()) in COLLECTIVES  # type: ignore[union-attr]


def written_names(node: Node, known: Signature) -> tuple[str, ...]:
    if (collective := COLLECTIVES.get(known.name)) is not None:
        return (collective.writes,) if collective.writes else ()
    if known.name in _SILENT_WRITES:
        return _SILENT_WRITES[known.name] if known.argument(node, "training") else ()
    return known.written


def _read(node: Node, known: Signature, operands: tuple[Node, ...]) -> tuple[Node, ...]:
    outs = {one for name in known.outs for one in _nodes(known.argument(node, name))}
    if outs:
        again = [one for name, one in node.kwargs.items() if name not in known.outs]
        outs -= {*_nodes(node.args), *_nodes(again)}
    first = node.args[0] if node.args else None
    if known.packet in _SHAPE_ONLY and isinstance(first, Node) and _static(first):
        again = {*_nodes(node.args[1:]), *_nodes(list(node.kwargs.values()))}
        outs |= {first} - again
    return tuple([one for one in operands if one not in outs]) if outs else operands


def _rows(node: Node) -> list[list[Node]] | None:
    """Returns the i-th tensors of all lists, for an op over lists."""
    given = [one for one in (*node.args, *node.kwargs.values()) if isinstance(one, (list, tuple)) and one]
    lists = [one for one in given if all(isinstance(part, Node) for part in one)]
    if not lists or len({len(one) for one in lists}) != 1:
        return None
    return [list(row) for row in zip(*lists, strict=True)]


def _nodes(value: Any) -> list[Node]:
    if isinstance(value, Node):
        return [value]
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Node)]


def _static(node: Node) -> bool:
    return all(isinstance(size, int) for leaf in tensors(node) for size in leaf.shape)


def _generator(node: Node, known: Signature) -> ByteRange | None:
    if not known.draws:
        return None
    if known.name.startswith("samebits::"):
        return ByteRange(SEED)
    own = known.argument(node, "generator")
    if own is None:
        return ByteRange(f"generator:{_device(node)}")
    return ByteRange(f"generator:{own.target if isinstance(own, Node) else 'of the step'}")


def _device(node: Node) -> str:
    for one in (*node.all_input_nodes, node):
        for leaf in tensors(one):
            return leaf.device.type
    return "cpu"


def _nondeterminism(node: Node, target: torch._ops.OpOverload) -> str:
    """Returns the reason why the op gives other bits for equal inputs; empty if it does not."""
    if target.namespace == "aten":
        on_cpu, elsewhere = _table_reason(target.name())
        return on_cpu if on_cpu == elsewhere or _device(node) == "cpu" else elsewhere
    declared = custom_ops.declaration_of(target._schema.name)
    if declared:
        return ""
    said = "nondeterministic" if declared is False else "of unknown determinism: samebits.declare_op says"
    return f"{target.name()} is {said}"


@cache
def _table_reason(name: str) -> tuple[str, str]:
    """Returns the reason of `_nondeterminism` for an op of torch's, on the CPU and elsewhere."""
    return _entry(name, "cpu"), _entry(name, "cuda")


def _entry(name: str, device: str) -> str:
    try:
        entry = table.lookup(name, device)
    except InvalidArgumentError:
        return f"{name} is not in the op table of this torch"
    if entry.deterministic:
        return ""
    if entry.verdict == UNWRITTEN:
        return f"{name} returns memory that was never written"
    return f"{name} on {device} is {entry.verdict}: {entry.reason}"


def generator_names(module: torch.fx.GraphModule) -> list[str]:
    parts = (part for part in module.modules() if isinstance(part, torch.fx.GraphModule))
    nodes = (node for part in parts for node in part.graph.nodes)
    ops = (node for node in nodes if isinstance(node.target, torch._ops.OpOverload))
    places = (_generator(node, signature_of(node)) for node in ops)
    return list(dict.fromkeys(str(place.storage) for place in places if place is not None))


def written_inputs(module: torch.fx.GraphModule) -> set[int]:
    """Returns the indices of the placeholders that the graph, or a body that it calls, writes to."""
    layout = StorageLayout(module)
    inputs = [node for node in layout.nodes if node.op == "placeholder"]
    written = written_storages(layout)
    held = [{place.storage for place in layout.places[node]} for node in inputs]
    return {index for index, storages in enumerate(held) if not storages.isdisjoint(written)}


def written_storages(layout: StorageLayout) -> set[Hashable]:
    """Returns the memory that the ops of a graph, and the bodies that it calls, write to."""
    calls = [node for node in layout.nodes if isinstance(node.target, torch._ops.OpOverload)]
    plans = (plan_of(node, layout) for node in calls)
    writers = [one for plan in plans for flow in plan.flows for one in flow.writers]
    written = {place.storage for one in writers for place in layout.places[one]}
    for node in layout.nodes:
        if str(node.target) == "invoke_subgraph":
            body, _, *given = node.args
            touched = (given[index] for index in written_inputs(layout.constant(body)))  # type: ignore[arg-type]
            written |= {place.storage for one in touched for place in layout.places[one]}  # type: ignore[index]
    return written
