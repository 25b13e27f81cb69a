"""A step as text: each op in order, with the ranks on which its operands and results hold the same bits."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from operator import attrgetter
from typing import NamedTuple

from torch._ops import OpOverload
from torch.fx import Node

from samebits._inspect.user_code import line_of_node
from samebits.replica._analysis.interpreter import Interpreter
from samebits.replica._analysis.storage_layout import constant_place
from samebits.replica._capture.captured_step import CONSTANT
from samebits.replica._report.report import Report, check_report


class ListedOperand(NamedTuple):
    """An operand when an op read it."""

    name: str
    partition: int
    maker: Node
    """The node that made its value."""


class ListedOp(NamedTuple):
    """An op with the partition of its results, or the name of a body whose ops follow."""

    indent: str
    node: Node
    line: str
    """The source line; in a body, that of the call."""
    operands: tuple[ListedOperand, ...] | None
    """None for the name of a body."""
    partition: int


class Makers:
    """The node that made each node's value: itself, or the last op so far that wrote to its memory."""

    def __init__(self, frame: Interpreter) -> None:
        self._frame = frame
        self._order = {node: index for index, node in enumerate(frame.layout.nodes)}
        self._writers: dict[Hashable, Node] = {}

    def add(self, node: Node) -> None:
        if isinstance(node.target, OpOverload):
            for flow in self._frame.program.plan(node, self._frame.layout).flows:
                self._writers.update((place.storage, node) for place in flow.writes)

    def __getitem__(self, node: Node) -> Node:
        written = (self._writers.get(place.storage, node) for place in self._frame.layout.places[node])
        return max([node, *written], key=self._order.__getitem__)


def listing(report: Report) -> str:
    """Returns a line per input, `w (state): equal`, then one per op in running order, bodies indented.

        all_reduce = _c10d_functional.all_reduce.default(mm_1: all differ) -> equal

    An operand is shown with its value when the op read it, a view with the value of its bytes; an operand of
    which the op reads only the shape is not shown. A body is listed once for each of its call sites, with
    what is true on every trip.

    Example:
        >>> args = torch.ones(3), torch.ones(4)
        >>> captured = samebits.replica.capture(lambda w, x: w.add_(x.sum()), *args, world_size=8)
        >>> print(samebits.replica.listing(samebits.replica.analyze(captured)))
        w (state): all differ
        x (batch): all differ
        sum_1 = aten.sum.default(x: all differ) -> all differ
        add_ = aten.add_.Tensor(w: all differ, sum_1: all differ) -> all differ
    """
    check_report("listing", report)
    step, text = report.step, report.partitions.text
    lines = [f"{name} ({kind}): {text(report.starts[name].partition)}" for name, kind in step.kinds.items()]
    for op in listed_ops(report, Makers(report.frame)):
        if op.operands is None:
            lines.append(f"{op.indent}{op.node.target}:")
        else:
            read = ", ".join(f"{one.name}: {text(one.partition)}" for one in op.operands)
            lines.append(f"{op.indent}{op.node.name} = {op.node.target}({read}) -> {text(op.partition)}")
    return "\n".join(lines)


def listed_ops(report: Report, makers: Makers) -> Iterator[ListedOp]:
    """Yields the ops of a step in the order of time; afterwards `makers` holds for the end of the step."""
    return _ops(report.frame, input_names(report), makers)


def input_names(report: Report) -> dict[Node, str]:
    step, layout = report.step, report.frame.layout
    placeholders = (node for node in layout.nodes if node.op == "placeholder")
    names = dict(zip(placeholders, step.kinds, strict=False))
    held = {name: attrgetter(name)(step.module) for name, kind in step.kinds.items() if kind == CONSTANT}
    constants = {constant_place(one): name for name, one in held.items()}
    for node in layout.nodes:
        if node.op == "get_attr":
            names.update((node, constants[place]) for place in layout.places[node] if place in constants)
    return names


def _ops(
    frame: Interpreter, names: dict[Node, str], makers: Makers, indent: str = "", call: str = ""
) -> Iterator[ListedOp]:
    for node in frame.layout.nodes:
        if node.op != "call_function":
            continue
        operands = tuple(
            ListedOperand(names.get(one, one.name), held, makers[one])
            for one, held in frame.consumed.get(node, {}).items()
        )
        result = frame.meet(frame.defined[node][0], *frame.computed.get(node, ()))
        line = call or line_of_node(node)
        yield ListedOp(indent, node, line, operands, result)
        makers.add(node)
        for graph, body in frame.bodies.get(node, {}).items():
            yield ListedOp(indent + "  ", graph, line, None, result)
            yield from _ops(body, {}, Makers(body), indent + "    ", line)
