"""The parts of a captured graph that belong to one rank: process groups, arguments that depend on it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.fx import Node
from torch.utils import _pytree as pytree

from samebits._inspect.user_code import line_of_node
from samebits.errors import ConflictError, InvalidArgumentError, UnimplementedError
from samebits.replica import CapturedStep
from samebits.replica._analysis.op_schemas import signature_of


def rank_of(step: CapturedStep, rank: int | None) -> int:
    """Returns the rank to lower for: as given, else that of the process.

    Raises ConflictError without a process group of the step's size, InvalidArgumentError without such a rank.
    """
    if rank is not None:
        if not isinstance(rank, int) or not 0 <= rank < step.world_size:
            raise InvalidArgumentError(f"lower(rank={rank!r}): ranks go from 0 to {step.world_size - 1}.")
        return rank
    size = dist.get_world_size() if dist.is_initialized() else 1
    if size != step.world_size:
        raise ConflictError(
            f"lower: the step was captured for {step.world_size} ranks, and this process group has {size}; "
            "lower it after init_process_group, with as many ranks, or say as which one: lower(step, rank=0)."
        )
    return dist.get_rank() if dist.is_initialized() else 0


def group_of(node: Node, step: CapturedStep, rank: int) -> dist.ProcessGroup:
    """Returns the process group of a collective, found by its ranks: names are those of the capture.

    Raises ConflictError if this process has no group of these ranks.
    """
    ranks = next(group for group in step.groups[node] if rank in group)
    for known in dist.distributed_c10d._world.pg_map if dist.is_initialized() else ():
        if tuple(dist.get_process_group_ranks(known)) == ranks:
            return known
    raise ConflictError(
        f"lower: {node.target} ({line_of_node(node)}) runs over ranks {list(ranks)}, and no process group "
        "has them; make it before, as the captured code did: init_process_group, then init_device_mesh or "
        "new_group."
    )


def arguments_of(node: Node, step: CapturedStep, rank: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of a node in this rank's code.

    Raises UnimplementedError if they depend on the rank, and this one was not captured, or are a tensor.
    """
    if node not in step.by_rank:
        return node.args, dict(node.kwargs)
    values = step.by_rank[node]
    if values is None or node.op == "get_attr" or _objects_differ(node, values):
        raise UnimplementedError(
            f"lower: {node.format_node()} is not the same on all ranks, and those of rank {rank} are not in "
            "the capture; make it an input of the step."
        )
    own = values[rank]
    kept = dict(zip(node.kwargs, own[len(node.args) :], strict=True))
    args = tuple(_merge(*both) for both in zip(node.args, own, strict=False))
    return args, {name: _merge(given, kept[name]) for name, given in node.kwargs.items()}


def _objects_differ(node: Node, values: tuple[Any, ...]) -> bool:
    """Returns True if an object of the graph, such as a reduction op, differs on other ranks."""
    given = (*node.args, *node.kwargs.values())
    return any(isinstance(one, Node) and len({own[i] for own in values}) > 1 for i, one in enumerate(given))


def group_position(node: Node) -> tuple[int, bool]:
    """Returns the position of a collective's group among its arguments, and True if it is given by name."""
    position = signature_of(node).position
    name = "group_name" if "group_name" in position else "process_group"
    return position[name], name == "group_name"


def _merge(captured: Any, own: Any) -> Any:
    if own is None or isinstance(captured, Node):
        return captured
    leaves, spec = pytree.tree_flatten(captured)
    mine = pytree.tree_leaves(own)
    if len(leaves) != len(mine):  # lists of other lengths hold numbers only
        return own
    return pytree.tree_unflatten(
        [old if isinstance(old, Node) else new for old, new in zip(leaves, mine, strict=True)], spec
    )
