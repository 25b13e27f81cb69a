"""The storages of a graph: the bytes of every tensor, as tracing with fake tensors found them.

The fake tensors of a captured graph share storages as the real ones will, through views, `.data`, `detach`,
and reshapes that copy or do not; so aliases need no rules of their own. Two things tracing does not show are
added: an in-place op on a captured constant or a view of one, and `wait_tensor`, which returns its tensor.
"""

from __future__ import annotations

from collections.abc import Hashable
from collections.abc import Set as AbstractSet
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from samebits.replica._analysis.collectives import COLLECTIVES
from samebits.replica._analysis.memory import ByteRange, place_of
from samebits.replica._analysis.op_schemas import signature_of

_WAITS = {"_c10d_functional::wait_tensor", "_c10d_functional_autograd::wait_tensor"}


class StorageLayout:
    """The places of the nodes of one graph. A node with no place is a number, or nothing."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.nodes = list(module.graph.nodes)
        self._same: dict[Hashable, Hashable] = {}
        self.places: dict[Node, tuple[ByteRange, ...]] = {}
        self._of_lists: dict[Node, frozenset[Hashable]] = {}
        for node in self.nodes:
            self.places[node] = tuple(self._places(node))

    def constant(self, node: Node) -> Any:
        return attrgetter(str(node.target))(self.module)

    def storages(self, node: Node) -> AbstractSet[Hashable]:
        """Returns the memory of a node. That of a list is cached: each tensor taken out of it needs it."""
        places = self.places[node]
        if len(places) < 2:
            return {place.storage for place in places}
        if node not in self._of_lists:
            self._of_lists[node] = frozenset([place.storage for place in places])
        return self._of_lists[node]

    def _places(self, node: Node) -> list[ByteRange]:
        if node.op == "get_attr":
            value = self.constant(node)
            if not isinstance(value, torch.Tensor):
                return []
            place = constant_place(value)
            self._alias(node.meta.get("val"), place.storage)
            return [place]
        if node.op == "call_function":
            self._alias_by_schema(node)
        return [place_of(leaf, self._storage(leaf, node, index)) for index, leaf in enumerate(tensors(node))]

    def _storage(self, leaf: torch.Tensor, node: Node, index: int) -> Hashable:
        key = _key(leaf)
        if key is None:
            return node.name, index
        while key in self._same:
            key = self._same[key]
        return key

    def _alias(self, leaf: Any, storage: Hashable) -> None:
        if isinstance(leaf, torch.Tensor) and (key := _key(leaf)) is not None and key != storage:
            self._same[key] = storage

    def _alias_by_schema(self, node: Node) -> None:
        """Makes an output that the schema calls an input an alias of it, whatever tracing did with it."""
        returned = _returned_inputs(node)
        found = tensors(node) if returned else []
        for index, operand in returned:
            if index < len(found) and len(self.places.get(operand, ())) == 1:
                self._alias(found[index], self.places[operand][0].storage)
        for viewed in self._viewed_constant(node):
            for leaf in tensors(node):
                self._alias(leaf, viewed.storage)

    def _viewed_constant(self, node: Node) -> tuple[ByteRange, ...]:
        """Returns the constant that a view op reads: each use of one is traced as another tensor."""
        given = node.args[0] if node.args else None
        if not isinstance(given, Node) or given.op != "get_attr":
            return ()
        views = isinstance(node.target, torch._ops.OpOverload) and signature_of(node).views
        return self.places[given] if views else ()


def constant_place(value: torch.Tensor) -> ByteRange:
    """Returns the bytes of a closed-over tensor, by its real storage, which other constants may share."""
    return place_of(value, ("constant", _key(value)))


def tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list, dict)):
        return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return []


def is_sparse(node: Node) -> bool:
    return any(leaf.layout is not torch.strided for leaf in tensors(node))


def _key(leaf: torch.Tensor) -> Hashable:
    try:
        return leaf.untyped_storage()._cdata
    except NotImplementedError:  # a layout without one storage: sparse
        return None


def _returned_inputs(node: Node) -> list[tuple[int, Node]]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    known = signature_of(node)
    if known.name in _WAITS:
        return [(0, node.args[0])]  # type: ignore[list-item]
    given = [(index, known.argument(node, name)) for index, name in known.returned]
    collective = COLLECTIVES.get(known.name)
    if collective is not None and collective.writes:  # c10d's schemas do not say it
        given += enumerate(pytree.tree_leaves(known.argument(node, collective.writes)))
    return [(index, one) for index, one in given if isinstance(one, Node)]
