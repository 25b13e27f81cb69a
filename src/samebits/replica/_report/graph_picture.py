"""The picture of a report: boxes for values and ops, and lines for the flow between them.

A step of more than `LIMIT` nodes is drawn by lines of code: consecutive ops of one line that are equal on the same
ranks are one box. If that is still too much, only the paths to drifting values are drawn, up to the limit; the page
says what was left out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from samebits._inspect.user_code import line_of_node
from samebits.replica._capture.captured_step import CONSTANT, GENERATOR, STATE
from samebits.replica._report.report import Report

LIMIT = 200
"""Boxes in a picture; with more it is unreadable."""
_WAYS = 20
"""Drifting values whose path is computed."""


@dataclass
class Box:
    """One or several values."""

    title: str
    partition: int
    kind: str
    """Of an input, `op`, `output`, or `state after`."""
    where: str = ""
    """The source line."""
    members: list[str] = field(default_factory=list)
    on_path: bool = False
    """True if it is on a path from a source to a value that drifts."""


@dataclass
class Picture:
    """Boxes in the order of the program; a line goes from an earlier one to a later one."""

    boxes: list[Box]
    lines: dict[tuple[int, int], bool]
    """(from, to) by index; True if the value that flows there varies."""
    note: str


class _Drawing:
    """Makes the boxes of one report."""

    def __init__(self, report: Report, *, by_line: bool) -> None:
        self.report, self.by_line = report, by_line
        self.equal = report.partitions.equal
        self.boxes: list[Box] = []
        self.lines: dict[tuple[int, int], bool] = {}
        self.of: dict[Node, int] = {}
        self.index = {node: index for index, node in enumerate(report.frame.layout.nodes)}
        self.writer: dict[Hashable, Node] = {}
        self._last: Hashable = None
        self._ends: dict[Hashable, int] = {}

    def draw(self) -> None:
        inputs = [name for name, kind in self.report.step.kinds.items() if kind not in {GENERATOR, CONSTANT}]
        names = iter(inputs)
        given: dict[str, Node] = {}
        for node in self.index:
            if node.op == "placeholder":
                name = next(names)
                given[name] = node
                self._input(node, name, self.report.step.kinds[name])
            elif node.op == "get_attr" and str(node.target) in self.report.step.kinds:
                self._input(node, str(node.target), CONSTANT)
            elif node.op == "call_function":
                self._op(node)
        self._last = None
        for name, node in given.items():
            if self.report.step.kinds[name] == STATE:
                self._add_state_after(name, node)
        leaves = torch.utils._pytree.tree_leaves(list(self.index)[-1].args[0])
        for name, leaf in zip(self.report.step.output_names, leaves, strict=True):
            if isinstance(leaf, Node):
                partition = self.report.values[name].partition
                self._line(
                    self._producer(leaf), self._box(Box(name, partition, "output"), ("output", partition))
                )

    def _input(self, node: Node, name: str, kind: str) -> None:
        partition = self.report.starts[name].partition
        self.of[node] = self._box(Box(name, partition, kind), (kind, partition))

    def _op(self, node: Node) -> None:
        partition = self.report.frame.defined[node][0]
        where = line_of_node(node)
        title = (
            str(node.target).removesuffix(".default").removeprefix("aten.").removeprefix("_c10d_functional.")
        )
        self.of[node] = self._box(Box(title, partition, "op", where), (where, partition))
        for one in node.all_input_nodes:
            self._line(self._producer(one), self.of[node])
        if isinstance(node.target, torch._ops.OpOverload):
            frame = self.report.frame
            for flow in frame.program.plan(node, frame.layout).flows:
                self.writer.update((place.storage, node) for place in flow.writes)

    def _add_state_after(self, name: str, node: Node) -> None:
        """Adds a box for the value of a variable after the step, if the step writes to it."""
        source = self._producer(node)
        if source is not node:
            partition = self.report.ends[name].partition
            self._line(source, self._box(Box(name, partition, "state after"), ("end", partition)))

    def _producer(self, node: Node) -> Node:
        """Returns the node that made the value of a node: itself, or the last op that wrote to its memory."""
        writers = [
            self.writer[p.storage] for p in self.report.frame.layout.places[node] if p.storage in self.writer
        ]
        return max([node, *writers], key=self.index.__getitem__)

    def _line(self, source: Node, to: int) -> None:
        if source in self.of and self.of[source] != to:
            key = (self.of[source], to)
            varies = self.report.frame.defined[source][0] != self.equal
            self.lines[key] = self.lines.get(key, False) or varies

    def _box(self, box: Box, alike: Hashable) -> int:
        """Returns the number of a new box, or of the last one if this is drawn together with it."""
        box.members = [box.title]
        if self.by_line and alike == self._last:
            self.boxes[-1].members.append(box.title)
        else:
            self.boxes.append(box)
        self._last = alike
        return len(self.boxes) - 1


def picture_of(report: Report) -> Picture:
    """Returns the boxes and lines of a report, at most `LIMIT`."""
    nodes = len(report.frame.layout.nodes)
    drawing = _Drawing(report, by_line=nodes > LIMIT)
    drawing.draw()
    _mark(drawing)
    if nodes <= LIMIT:
        return Picture(drawing.boxes, drawing.lines, f"all {nodes} nodes of the step")
    note = f"{nodes} nodes: consecutive ops of one source line are one box"
    boxes, lines = drawing.boxes, drawing.lines
    if len(boxes) > LIMIT:
        ranked = sorted(range(len(boxes)), key=lambda i: (not boxes[i].on_path, boxes[i].kind == "op", i))
        kept = {old: new for new, old in enumerate(sorted(ranked[:LIMIT]))}
        note += f"; {LIMIT} of {len(boxes)} boxes are drawn, first those on the way to what drifts"
        boxes = [boxes[old] for old in kept]
        lines = {(kept[a], kept[b]): v for (a, b), v in lines.items() if a in kept and b in kept}
    return Picture(boxes, lines, note)


def _mark(drawing: _Drawing) -> None:
    """Marks the boxes on the shortest paths from a first varying source to a value that drifts."""
    report = drawing.report
    inputs = dict(_inputs(drawing))
    for name in report.drifting[:_WAYS]:
        for event in report.way(name, report.over_declared(name)):
            at = inputs.get(event.what) if isinstance(event.what, str) else drawing.of.get(event.what)
            if at is not None:
                drawing.boxes[at].on_path = True
    for box in drawing.boxes:
        if box.kind == "state after" and set(box.members) & set(report.drifting):
            box.on_path = True


def _inputs(drawing: _Drawing) -> Iterator[tuple[str, int]]:
    for index, box in enumerate(drawing.boxes):
        if box.kind in drawing.report.step.kinds.values():
            yield from ((name, index) for name in box.members)
