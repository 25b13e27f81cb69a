"""Rewrites a captured graph: ops round, collectives find their groups, each call of a body has its stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from samebits._context import Words
from samebits._inspect.user_code import line_of_node, text_of_node
from samebits.errors import UnimplementedError
from samebits.random import _int_keys as int_keys
from samebits.replica import CapturedStep
from samebits.replica._analysis.control_flow_ops import HANDLERS
from samebits.replica._analysis.interpreter import Interpreter
from samebits.replica._analysis.op_rules import is_collective
from samebits.rounding._transform.lowering_rules import FLOAT32, Rule, is_narrow, rule_of, written_tensors
from samebits.rounding._transform.process_groups import arguments_of, group_of, group_position
from samebits.rounding._transform.rounded_ops import Place, Rounded, Waited
from samebits.rounding._transform.seed_methods import bodies_of


class Lowering:
    """Lowers the graph of a step, and the bodies in it, for one rank."""

    def __init__(self, step: CapturedStep, rank: int, rules: Mapping[str, Rule], *, rounding: bool) -> None:
        self.step, self.rank, self.rules, self.rounding = step, rank, rules, rounding

    def graph(self, frame: Interpreter) -> GraphModule:
        """Returns the lowered graph of a frame; its first input is the stream, two integers."""
        return _Body(self, frame).lower()


class _Body:
    """One graph while it is lowered."""

    def __init__(self, whole: Lowering, frame: Interpreter) -> None:
        self.whole, self.frame = whole, frame
        self.root, self.to = nn.Module(), Graph()
        self.stream = self.to.placeholder("stream")
        self.now: dict[Node, Any] = {}
        self.seen: Counter[str] = Counter()

    def lower(self) -> GraphModule:
        for node in self.frame.layout.nodes:
            if node.op == "get_attr":
                self._constant(node)
            elif node.op == "call_function":
                self.now[node] = self._call(node, self._position(node))
            else:
                self.now[node] = self.to.node_copy(node, self.now.__getitem__)
        return GraphModule(self.root, self.to)

    def _position(self, node: Node) -> str:
        """Returns an op's name: the user's line, op, number among equal ones. Other lines may change."""
        where = f"{text_of_node(node)}|{node.target}"
        self.seen[where] += 1
        return f"{where}|{self.seen[where]}"

    def _constant(self, node: Node) -> None:
        value = self.frame.layout.constant(node)
        if not isinstance(value, GraphModule):
            arguments_of(node, self.whole.step, self.whole.rank)
            self.now[node] = self._attribute(str(node.target).replace(".", "_"), value)

    def _attribute(self, name: str, value: Any) -> Node:
        setattr(self.root, name, value)
        return self.to.get_attr(name)

    def _call(self, node: Node, position: str) -> Node:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return self._higher_order_call(node, position)
        rule = rule_of(node, self.frame, self.whole.rules) if self.whole.rounding else None
        args, kwargs = self._arguments(node)
        if rule == FLOAT32:
            return self._module(
                node, Rounded(node, position, self._classes(node)), (self.stream, *args), kwargs
            )
        if str(node.target).startswith("c10d."):
            return self._module(node, Waited(node), args, kwargs)
        copy = self.to.node_copy(node, lambda one: self.now[one])
        copy.args, copy.kwargs = args, kwargs
        return copy

    def _module(self, node: Node, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        name = f"lowered_{node.name}"
        self.root.add_module(name, module)
        call = self.to.call_module(name, args, kwargs)
        call.meta = dict(node.meta)
        return call

    def _arguments(self, node: Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = arguments_of(node, self.whole.step, self.whole.rank)
        args, kwargs = torch.fx.node.map_arg((args, kwargs), self.now.__getitem__)
        if is_collective(node):
            group, (at, by_name) = group_of(node, self.whole.step, self.whole.rank), group_position(node)
            own = group.group_name if by_name else self._attribute(f"group_{node.name}", group.boxed())
            args = (*args[:at], own, *args[at + 1 :])
        return args, kwargs

    def _classes(self, node: Node) -> dict[Place, int]:
        """Returns the class of this rank for each result and each tensor that is written to."""
        computed = self.frame.computed[node]
        found: dict[Place, int] = {}
        for place in written_tensors(node):
            found[place] = self._label(computed, place[1])
        for index, _ in enumerate(torch.utils._pytree.tree_leaves(node.meta.get("val"))):
            found[index, 0] = self._label(computed, index)
        return found

    def _label(self, computed: tuple[int, ...], index: int) -> int:
        partition = computed[index] if len(computed) > 1 else computed[0]
        return int(self.frame.known.labels(partition)[self.whole.rank])

    def _higher_order_call(self, node: Node, position: str) -> Node:
        graphs = bodies_of(node)
        if str(node.target) not in HANDLERS:
            return self._opaque_call(node, graphs)
        bodies = {graph: self.whole.graph(self.frame.bodies[node][graph]) for graph in graphs}
        places = {index: bodies[one] for index, one in enumerate(node.args) if one in bodies}  # type: ignore[index]
        operands = tuple(None if index in places else one for index, one in enumerate(node.args))
        args, kwargs = torch.fx.node.map_arg((operands, node.kwargs), self.now.__getitem__)
        return self._module(node, HigherOrderCalls(node, position, places), (self.stream, *args), kwargs)

    def _opaque_call(self, node: Node, graphs: list[Node]) -> Node:
        inside = [self.frame.layout.constant(graph) for graph in graphs]
        if self.whole.rounding and any(
            is_narrow(one) for one in (node, *(one for body in inside for one in body.graph.nodes))
        ):
            raise UnimplementedError(
                f"lower: no rule says how to round inside of {node.target} ({node.name}; "
                f"{line_of_node(node)})."
            )
        for graph, body in zip(graphs, inside, strict=True):
            self.now[graph] = self._attribute(str(graph.target), body)
        return self.to.node_copy(node, lambda one: self.now[one])


class HigherOrderCalls(nn.Module):
    """A higher-order op; trip t through its body rounds by `fold_in(the graph's stream, op, body, t)`."""

    def __init__(self, node: Node, position: str, bodies: Mapping[int, GraphModule]) -> None:
        super().__init__()
        self.target: Any = node.target
        self._position = int_keys.as_uint64(position)
        self._places = {index: str(node.args[index]) for index in bodies}
        for index, body in bodies.items():
            self.add_module(self._places[index], body)

    def forward(self, stream: Words, *args: Any, **kwargs: Any) -> Any:
        """Runs the op."""
        given = list(args)
        for index, name in self._places.items():
            given[index] = _count_trips(getattr(self, name), int_keys.fold(stream, self._position, index))
        return self.target(*given, **kwargs)


def _count_trips(body: GraphModule, stream: Words) -> Callable[..., Any]:
    trip = 0

    def call(*operands: Any) -> Any:
        nonlocal trip
        trip += 1
        return body(int_keys.fold(stream, trip), *operands)

    return call
