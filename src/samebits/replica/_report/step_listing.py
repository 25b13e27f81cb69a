"""A step as text: every op in the order of time, with the ranks on which its operands and results hold the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from torch.fx import Node

from samebits.replica._analysis.interpreter import Interpreter
from samebits.replica._analysis.storage_layout import constant_place
from samebits.replica._capture.captured_step import CONSTANT
from samebits.replica._report.report import Report, check_report


def listing(report: Report) -> str:
    """Returns one line per input, `w (state): equal`, then one per op, in the order in which they run, bodies indented.

        all_reduce = _c10d_functional.all_reduce.default(mm_1: all differ) -> equal

    An operand is shown with its value when the op read it, a view with the value of its bytes; an operand of which the
    op reads only the shape is not shown. A body is listed once for each of its call sites, with what is true on every
    trip.

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
    step, frame = report.step, report.frame
    placeholders = (node for node in frame.layout.nodes if node.op == "placeholder")
    names = dict(zip(placeholders, step.kinds, strict=False))
    held = {name: attrgetter(name)(step.module) for name, kind in step.kinds.items() if kind == CONSTANT}
    constants = {constant_place(one): name for name, one in held.items()}
    for node in frame.layout.nodes:
        if node.op == "get_attr":
            names.update(
                (node, constants[place]) for place in frame.layout.places[node] if place in constants
            )
    text = report.partitions.text
    starts = [f"{name} ({kind}): {text(report.starts[name].partition)}" for name, kind in step.kinds.items()]
    return "\n".join([*starts, *_ops(frame, names, "")])


def _ops(frame: Interpreter, names: dict[Node, str], indent: str) -> Iterator[str]:
    text = frame.known.text
    for node in frame.layout.nodes:
        if node.op != "call_function":
            continue
        consumed = frame.consumed.get(node, {})
        read = ", ".join(f"{names.get(one, one.name)}: {text(held)}" for one, held in consumed.items())
        gave = text(frame.meet(frame.defined[node][0], *frame.computed.get(node, ())))
        yield f"{indent}{node.name} = {node.target}({read}) -> {gave}"
        for graph, body in frame.bodies.get(node, {}).items():
            yield f"{indent}  {graph.target}:"
            yield from _ops(body, {}, indent + "    ")
