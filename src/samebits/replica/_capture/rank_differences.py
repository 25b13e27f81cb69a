"""Captures of all ranks, compared: only this finds values that the Python code computes from the rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from samebits import _digest as digest
from samebits._inspect.user_code import line_of_node
from samebits.errors import RankDependentError, UnimplementedError
from samebits.replica._analysis.collectives import COLLECTIVES
from samebits.replica._analysis.op_schemas import signature, signature_of
from samebits.replica._analysis.partitions import Groups


@dataclass
class RankTrace:
    """The ops that one rank runs, line by line: comparable with other ranks."""

    rank: int
    module: GraphModule
    nodes: list[Node] = field(default_factory=list)
    shape: list[str] = field(default_factory=list)
    """Op and inputs of each node: equal on all ranks, or the code branches on the rank."""
    literals: list[Any] = field(default_factory=list)
    """The arguments of each node that are no values of the graph."""
    groups: list[tuple[int, ...] | None] = field(default_factory=list)
    """The ranks of each collective."""


def trace_of(rank: int, module: GraphModule) -> RankTrace:
    """Reads a graph while the process group that it was captured with exists."""
    trace = RankTrace(rank, module)
    for node, owner in _all_nodes(module):
        group = _group(node, owner)
        trace.nodes.append(node)
        trace.shape.append(f"{node.name} = {node.op} {node.target} {_operands(node)}")
        trace.literals.append(_literals(node, owner, group is not None))
        trace.groups.append(group)
    return trace


def compare_ranks(traces: list[RankTrace], world_size: int) -> dict[Node, tuple[Any, ...] | None]:
    """Returns the nodes (of the first trace) whose arguments depend on the rank, with these [ranks].

    Raises RankDependentError, with both lines, if the ranks do not run the same ops.
    """
    first = traces[0]
    for other in traces[1:]:
        _check_same_shape(first, other)
    found: dict[Node, tuple[Any, ...] | None] = {}
    for index, node in enumerate(first.nodes):
        values = tuple(trace.literals[index] for trace in traces)
        if any(str(value) != str(values[0]) for value in values):
            found[node] = values if len(traces) == world_size else None
    return found


def groups_of(traces: list[RankTrace], world_size: int, mesh: dict[str, int]) -> dict[Node, Groups]:
    """Returns all groups of each collective. The groups of ranks that were not captured follow from the mesh.

    Raises RankDependentError if a group of one rank is not that of another member, or no axes of the mesh.
    """
    found: dict[Node, Groups] = {}
    interned: dict[Groups, Groups] = {}
    for index, node in enumerate(traces[0].nodes):
        if traces[0].groups[index] is None:
            continue
        seen = {trace.rank: trace.groups[index] for trace in traces}
        if len(traces) < world_size:
            seen = _along_mesh(seen, world_size, mesh, node)
        groups = _check_groups(seen, node)
        found[node] = interned.setdefault(groups, groups)
    return found


def _check_groups(seen: dict[int, tuple[int, ...] | None], node: Node) -> Groups:
    """Returns the groups of all ranks, each once. An object that many ranks share is read once."""
    callers: dict[int, list[int]] = {}
    for rank, group in seen.items():
        callers.setdefault(id(group), []).append(rank)
    by_group: dict[tuple[int, ...], list[int]] = {}
    for ranks in callers.values():
        by_group.setdefault(seen[ranks[0]] or (), []).extend(ranks)
    for group, ranks in by_group.items():
        if sorted(group) != sorted(ranks):
            raise RankDependentError(
                f"capture: {node.target} at {line_of_node(node)}: rank {ranks[0]} calls it with the group "
                f"{group or None}, which is not the group of all its members; they would wait for each other "
                "for ever."
            )
    return tuple(sorted(by_group))


def _along_mesh(seen: dict[int, Any], world_size: int, mesh: dict[str, int], node: Node) -> dict[int, Any]:
    """Returns the groups of all ranks, from those of some: along the axes in which the first one extends."""
    sizes = tuple(mesh.values()) or (world_size,)
    places = torch.arange(world_size).reshape(sizes)
    example = next(iter(seen.values()))
    where = np.unravel_index(example, sizes)
    axes = [axis for axis, places_on in enumerate(where) if len(np.unique(places_on)) > 1]
    fixed = [axis for axis in range(len(sizes)) if axis not in axes]
    is_whole = places.numel() % len(example) == 0
    rows = places.permute(*fixed, *axes).reshape(-1, len(example)) if is_whole else places[:0]
    found = {rank: row for row in map(tuple, rows.tolist()) for rank in row}
    if any(found.get(rank) != group for rank, group in seen.items()):
        raise RankDependentError(
            f"capture: {node.target} at {line_of_node(node)}: the group {example} is along no axes of the "
            f"mesh {mesh}, so the groups of {world_size - len(seen)} ranks that were not captured are not "
            "known; capture all ranks."
        )
    return found


def check_same_over_steps(first: RankTrace, module: GraphModule) -> None:
    """Raises `UnimplementedError`, with the line, if a rank's second step runs other ops than its first."""
    second = trace_of(first.rank, module)
    for index, one in enumerate(second.shape):
        before = first.shape[index] if index < len(first.shape) else "nothing"
        if one != before:
            raise UnimplementedError(
                f"capture: the Python code does other things in the second step than in the first: {one} "
                f"[{line_of_node(second.nodes[index])}], where {before} was. Capture a function that does "
                "the same in every step."
            )


def _check_same_shape(first: RankTrace, other: RankTrace) -> None:
    for index in range(max(len(first.shape), len(other.shape))):
        one, two = (trace.shape[index] if index < len(trace.shape) else "nothing" for trace in (first, other))
        if one != two:
            lines = [line_of_node(t.nodes[min(index, len(t.nodes) - 1)]) for t in (first, other)]
            raise RankDependentError(
                f"capture: the Python code does other things on rank {other.rank} than on rank {first.rank}. "
                f"Rank {first.rank}: {one} [{lines[0]}]. Rank {other.rank}: {two} [{lines[1]}]. Run the same "
                "ops on all ranks."
            )


def _all_nodes(module: GraphModule) -> Iterator[tuple[Node, GraphModule]]:
    for _, part in module.named_modules():
        if isinstance(part, GraphModule):
            yield from ((node, part) for node in part.graph.nodes)


def _operands(node: Node) -> str:
    given = node.args, node.kwargs
    return str(pytree.tree_map(lambda leaf: leaf.name if isinstance(leaf, Node) else "", given))


def _literals(node: Node, owner: GraphModule, is_collective: bool) -> Any:
    if node.op == "get_attr":
        value = attrgetter(str(node.target))(owner)
        return _bits(value) if isinstance(value, torch.Tensor) else None
    names = list(signature_of(node).position) if is_collective else []
    kept = [
        None if position < len(names) and names[position] == "group_name" else _plain(given, owner)
        for position, given in enumerate(node.args)
    ]
    return (*kept, *(_plain(given, owner) for given in node.kwargs.values()))


def _plain(value: Any, owner: GraphModule) -> Any:
    return pytree.tree_map(lambda leaf: _reduction(leaf, owner) if isinstance(leaf, Node) else leaf, value)


def _reduction(node: Node, owner: GraphModule) -> str | None:
    """Returns the reduction of a collective of c10d, which is an object of the graph; None for a value."""
    found = attrgetter(str(node.target))(owner) if node.op == "get_attr" else None
    if not isinstance(found, torch.ScriptObject) or not found._type().str().endswith(".ReduceOp"):  # type: ignore[attr-defined]
        return None
    kind = found.op()  # type: ignore[attr-defined]
    return f"{kind} by {dist.get_rank()}" if kind == dist.ReduceOp.PREMUL_SUM else str(kind)


def _bits(value: torch.Tensor) -> str:
    if isinstance(value, torch._subclasses.FakeTensor):
        return f"not known on rank {dist.get_rank()}"
    return digest.of_value(value)


def _group(node: Node, owner: GraphModule) -> tuple[int, ...] | None:
    if not isinstance(node.target, torch._ops.OpOverload) or node.target.name() not in COLLECTIVES:
        return None
    for name, given in zip(signature(node.target).position, node.args, strict=False):
        if name == "group_name":
            return tuple(dist.get_process_group_ranks(_resolve_process_group(given)))  # type: ignore[arg-type]
        if name == "process_group":
            boxed = attrgetter(str(given.target))(owner)  # type: ignore[union-attr]
            return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(boxed)))
    return None
