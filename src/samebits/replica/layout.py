"""Where the values of a graph live: the bytes of every tensor, by what tracing with fake tensors saw.

The fake tensors of a captured graph share storages as the real ones will, through views, `.data`, `detach`, and
reshapes that copy or do not; so aliases need no rules of their own. Two things tracing does not show are added: an
in-place op on a captured constant or a view of one, and `wait_tensor`, whose result is the tensor that was waited for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from samebits.replica.collectives import COLLECTIVES
from samebits.replica.memory import Place, place_of
from samebits.replica.schema import argument, signature_of

_WAITS = {"_c10d_functional::wait_tensor", "_c10d_functional_autograd::wait_tensor"}


class Layout:
    """The places of the nodes of one graph. A node with no place is a number, or nothing."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.nodes = list(module.graph.nodes)
        self._same: dict[Hashable, Hashable] = {}
        self.places: dict[Node, tuple[Place, ...]] = {}
        for node in self.nodes:
            self.places[node] = tuple(self._places(node))

    def constant(self, node: Node) -> Any:
        """What a `get_attr` node names."""
        return attrgetter(str(node.target))(self.module)

    def _places(self, node: Node) -> Iterator[Place]:
        if node.op == "get_attr":
            value = self.constant(node)
            if isinstance(value, torch.Tensor):
                place = constant_place(value)
                self._alias(node.meta.get("val"), place.storage)
                yield place
            return
        if node.op == "call_function":
            self._alias_by_schema(node)
        for index, leaf in enumerate(tensors(node)):
            yield place_of(leaf, self._storage(leaf, node, index))

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
        """An output that the schema calls an input, whatever tracing did with it."""
        found = list(tensors(node))
        for index, operand in _returned_inputs(node):
            if index < len(found) and len(self.places.get(operand, ())) == 1:
                self._alias(found[index], self.places[operand][0].storage)
        for viewed in self._viewed_constant(node):
            for leaf in found:
                self._alias(leaf, viewed.storage)

    def _viewed_constant(self, node: Node) -> tuple[Place, ...]:
        """The constant that a view op looks at: each use of one is traced as a tensor of its own."""
        if not isinstance(node.target, torch._ops.OpOverload) or not node.target.is_view:
            return ()
        if torch.Tag.maybe_aliasing_or_mutating in node.target.tags:
            return ()
        given = node.args[0]
        return self.places[given] if isinstance(given, Node) and given.op == "get_attr" else ()


def constant_place(value: torch.Tensor) -> Place:
    """The bytes of a tensor that the code closes over: by its real storage, which other constants may share."""
    return place_of(value, ("constant", _key(value)))


def tensors(node: Node) -> Iterator[torch.Tensor]:
    """The fake tensors that a node gave."""
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        yield from (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _key(leaf: torch.Tensor) -> Hashable:
    try:
        return leaf.untyped_storage()._cdata
    except NotImplementedError:  # a layout without one storage: sparse
        return None


def _returned_inputs(node: Node) -> Iterator[tuple[int, Node]]:
    if not isinstance(node.target, torch._ops.OpOverload):
        return
    if node.target.name() in _WAITS:
        yield 0, node.args[0]  # type: ignore[misc]
    collective = COLLECTIVES.get(node.target.name())
    if collective is not None and collective.writes:  # c10d's schemas do not say it
        targets = pytree.tree_leaves(argument(node, collective.writes))
        yield from ((index, one) for index, one in enumerate(targets) if isinstance(one, Node))
    for index, name in signature_of(node).returned:
        given = argument(node, name)
        if isinstance(given, Node):
            yield index, given
