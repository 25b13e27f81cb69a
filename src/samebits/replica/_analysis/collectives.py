"""Collectives: the ranks whose bits each member gets.

Assumed of a backend: the result of a reduction has equal bits on all members of its group, and equal inputs
in equal order give equal bits in two groups of one size. Order counts: (a + b) + c is not (b + c) + a.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from samebits.replica._analysis.op_schemas import argument, signature_of
from samebits.replica._analysis.partitions import Groups, Partitions

TOGETHER, PARTS, FROM_ROOT, AT_ROOT = "together", "parts", "from root", "at root"
"""All members get the same; each member gets its own part; all get the root's; only the root gets it."""


@dataclass(frozen=True)
class Collective:
    """One op: its members' result, the arguments that it reads and writes (functional: none written)."""

    move: str
    reads: str
    writes: str = ""
    root: str = ""
    per_tensor: bool = False
    """True if tensor i of a list of results depends on tensor i of the inputs only."""


_REDUCED = Collective(TOGETHER, "input")
_FUNCTIONAL = {
    "all_reduce": _REDUCED,
    "all_reduce_": Collective(TOGETHER, "input", "input"),
    "all_reduce_coalesced": Collective(TOGETHER, "inputs", per_tensor=True),
    "all_reduce_coalesced_": Collective(TOGETHER, "inputs", "inputs", per_tensor=True),
    "all_gather_into_tensor": _REDUCED,
    "all_gather_into_tensor_out": Collective(TOGETHER, "input", "out"),
    "all_gather_into_tensor_coalesced": Collective(TOGETHER, "inputs", per_tensor=True),
    "reduce_scatter_tensor": Collective(PARTS, "input"),
    "reduce_scatter_tensor_out": Collective(PARTS, "input", "out"),
    "reduce_scatter_tensor_coalesced": Collective(PARTS, "inputs", per_tensor=True),
    "all_to_all_single": Collective(PARTS, "input"),
    "broadcast": Collective(FROM_ROOT, "input", root="src"),
    "broadcast_": Collective(FROM_ROOT, "input", "input", root="src"),
}
_IN_PLACE = {
    "allreduce_": Collective(TOGETHER, "tensors", "tensors", per_tensor=True),
    "allreduce_coalesced_": Collective(TOGETHER, "tensors", "tensors", per_tensor=True),
    "broadcast_": Collective(FROM_ROOT, "tensors", "tensors", root="root_rank", per_tensor=True),
    "_allgather_base_": Collective(TOGETHER, "input_tensor", "output_tensor"),
    "allgather_": Collective(TOGETHER, "input_tensors", "output_tensors"),
    "allgather_into_tensor_coalesced_": Collective(TOGETHER, "inputs", "outputs", per_tensor=True),
    "_reduce_scatter_base_": Collective(PARTS, "input_tensor", "output_tensor"),
    "reduce_scatter_": Collective(PARTS, "input_tensors", "output_tensors"),
    "reduce_scatter_tensor_coalesced_": Collective(PARTS, "inputs", "outputs", per_tensor=True),
    "alltoall_base_": Collective(PARTS, "input", "output"),
    "alltoall_": Collective(PARTS, "input_tensors", "output_tensors"),
    "reduce_": Collective(AT_ROOT, "tensors", "tensors", root="root_rank", per_tensor=True),
    "gather_": Collective(AT_ROOT, "input_tensors", "output_tensors", root="root_rank"),
    "scatter_": Collective(PARTS, "input_tensors", "output_tensors"),
}
COLLECTIVES = {
    **{f"_c10d_functional::{name}": one for name, one in _FUNCTIONAL.items()},
    **{f"_c10d_functional_autograd::{name}": one for name, one in _FUNCTIONAL.items()},
    **{f"c10d::{name}": one for name, one in _IN_PLACE.items()},
}


def result_partition(
    collective: Collective,
    node: Node,
    groups: Groups,
    inputs: int,
    by_rank: Sequence[Node] | None,
    known: Partitions,
) -> int:
    """Returns the partition of a result from that of the inputs [groups: every rank is in one].

    `by_rank`: the splits of each rank.
    """
    splits = _splits(node, by_rank, known.ranks)
    if collective.move == PARTS and by_rank is not None and splits is None:
        return known.distinct
    root = argument(node, collective.root) if collective.root else 0
    key = (collective.move, id(groups), inputs, root, splits)
    return known.cached(
        key, lambda: list(_symbols(collective.move, groups, known.labels(inputs).tolist(), root, splits))
    )


def _symbols(move: str, groups: Groups, labels: list[int], root: int, splits: Any) -> Iterator[object]:
    symbols: list[object] = [("alone", rank) for rank in range(len(labels))]
    for group in groups:
        held = tuple(labels[rank] for rank in group)
        for position, rank in enumerate(group):
            if move == TOGETHER:
                symbols[rank] = held
            elif move == FROM_ROOT:
                symbols[rank] = held[root]
            elif move == AT_ROOT:
                symbols[rank] = held if position == root else ("not the root", rank)
            elif splits is not None:
                symbols[rank] = tuple(_received_parts(group, held, position, splits))
            else:
                symbols[rank] = (held, position) if len(group) > 1 else held[0]
    yield from symbols


def _received_parts(
    group: Sequence[int], held: Sequence[int], position: int, splits: Any
) -> Iterator[object]:
    """Yields the parts that one member gets: the sender's label, the offset, the length."""
    for sender, label in zip(group, held, strict=True):
        sent = splits[sender]
        if sent[position]:
            yield label, sum(sent[:position]), sent[position]


def _splits(node: Node, by_rank: Sequence[Any] | None, ranks: int) -> Any:
    """Returns the sizes that each rank sends; None if all ranks have the same, or lengths are not known."""
    own = argument(node, "input_split_sizes") or ()
    if not own or by_rank is None or not all(isinstance(size, int) for size in own):
        return None
    position = signature_of(node).position["input_split_sizes"]
    return tuple(tuple(by_rank[rank][position]) for rank in range(ranks))
