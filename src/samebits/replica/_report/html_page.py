"""A report as one self-contained HTML page: explanations, the step op by op, what varies in red, values."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from html import escape
from itertools import count, groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from torch.fx import Node
from torch.utils._pytree import tree_leaves

from samebits.replica._report.report import Report, check_report
from samebits.replica._report.step_listing import ListedOp, Makers, input_names, listed_ops

_OPEN = 200
"""Ops of a step whose lines are all unfolded; of a larger one those on a way to what drifts."""
_EXPLAINED = 20

_STYLE = """
pre { border-color: var(--bad) } td, th { border: 0; padding: .1rem .9rem .1rem .5rem }
details { margin: .3rem 0; border-left: 5px solid var(--same) }
summary { background: var(--way); padding: .1rem .5rem } summary span { float: right }
details.varying { border-color: var(--bad) } .varying > summary, tr.way td { background: var(--bad-band) }
.step { font: 12px/1.5 ui-monospace, monospace } .step table { table-layout: fixed }
.step td { width: 20%; white-space: pre-wrap } .step td:nth-child(3) { width: 40% }
a.varying, tr.varying td:last-child { color: var(--bad) } :target td { background: var(--mark) }
tr.way td, a.way, .way > summary { font-weight: bold } tr.way a:not(.way) { font-weight: normal }
"""
"""Beside `_page.css`, which all pages share."""


def write_html(report: Report, file: str | os.PathLike[str]) -> None:
    """Writes a report as a page: verdict, explanations, every op under its source line, and the values.

    Raises:
        InvalidArgumentError: `report` is no report.
        OSError: the file cannot be written.

    Example:
        >>> from pathlib import Path
        >>> captured = samebits.replica.capture(lambda x: x + 1, torch.ones(2), world_size=4)
        >>> samebits.replica.write_html(samebits.replica.analyze(captured), "step.html")
        >>> "Replica-equal analysis" in Path("step.html").read_text()
        True
    """
    check_report("write_html(report, file)", report)
    Path(file).write_text("\n".join(_Page(report).lines()) + "\n", encoding="utf-8")


class _Page:
    """One page. A link leads from each value to the row of what made it."""

    def __init__(self, report: Report) -> None:
        self.report, self.drifting, self.text = report, report.drifting, report.partitions.text
        self.makers = Makers(report.frame)
        self.ops = list(listed_ops(report, self.makers))
        names, place = input_names(report), {name: index for index, name in enumerate(report.step.kinds)}
        self.nodes = {name: node for node, name in names.items()}
        self.rows = {node: f"input{place[name]}" for node, name in names.items()}
        self._numbers = count()
        shown = self.drifting[:_EXPLAINED]
        way = {event.what for name in shown for event in report.way(name, report.over_declared(name))}
        self.way = way | {node for node, name in names.items() if name in way}

    def lines(self) -> Iterator[str]:
        report, drifting, step = self.report, self.drifting, list(self._step())
        verdict = f"{len(drifting)} state(s) drift apart" if drifting else "state stays as equal as declared"
        yield "<!doctype html><html lang=en><meta charset=utf-8><title>Replica-equal analysis</title>"
        yield "<meta name=viewport content='width=device-width, initial-scale=1'>"
        shared = Path(__file__).parents[2].joinpath("_page.css").read_text(encoding="ascii")
        yield f"<style>{shared}{_STYLE}</style><h1>Replica-equal analysis</h1>"
        ranks = f"{report.step.world_size} ranks, code run as {len(report.step.captured)} of them"
        yield f"<p><b class={'bad' if drifting else 'good'}>{verdict}</b>; {ranks}.</p>"
        for name in drifting[:_EXPLAINED]:
            yield f"<pre>{escape(report.explain_drift(name))}</pre>"
        if len(drifting) > _EXPLAINED:
            yield f"<p>and {len(drifting) - _EXPLAINED} more, in the table below.</p>"
        for one in report.findings:
            yield f"<pre>{escape(f'{one.kind}: {one.text}')}</pre>"
        yield (
            "<h2>The step, line by line</h2><p>Red varies over ranks; bold is on the shortest way to what "
            "drifts. A click on an operand, or on an end, leads to what made it.</p><div class=step>"
        )
        yield from step
        yield "</div><h2>Values</h2><table><tr><th>value<th>kind<th>start<th>end</tr>"
        yield from self._values()
        yield "</table></html>"

    def _values(self) -> Iterator[str]:
        report = self.report
        for number, (name, kind) in enumerate(report.step.kinds.items()):
            classes = " ".join(["bad"] * (name in self.drifting) + ["way"] * (name in self.way))
            start = self._time(report.starts[name].partition)
            end = self._time(report.ends[name].partition, self.nodes.get(name))
            cells = f"<td>{escape(name)}<td>{kind}<td>{start}<td>{end}"
            yield f'<tr id=input{number} class="{classes}">{cells}</tr>'
        leaves = tree_leaves(report.frame.layout.nodes[-1].args[0])
        for name, leaf in zip(report.step.output_names, leaves, strict=True):
            end = self._time(report.values[name].partition, leaf)
            yield f"<tr><td>{escape(name)}<td>output<td><td>{end}</tr>"

    def _time(self, partition: int, node: Any = None) -> str:
        """Returns the ranks of a value at the start, or of a node at the end of the step."""
        maker = self.makers[node] if isinstance(node, Node) else None
        return self._link(self.text(partition), partition, maker, on_way=False)

    def _step(self) -> Iterator[str]:
        for line, group in groupby(self.ops, key=attrgetter("line")):
            ops = list(group)
            rows = [self._row(op) for op in ops]
            on_way = any(op.node in self.way for op in ops)
            partition = self.report.frame.meet(*(op.partition for op in ops))
            opened = " open" * (on_way or len(self.ops) <= _OPEN)
            yield f'<details class="{self._classes(partition, on_way)}"{opened}><summary>{escape(line)}'
            number = sum(op.operands is not None for op in ops)
            yield f"<span>{number} op(s): {self.text(partition)}</span></summary><table>"
            yield from rows
            yield "</table></details>"

    def _row(self, op: ListedOp) -> str:
        if op.operands is None:
            return f"<tr><td>{op.indent}{escape(str(op.node.target))}:</tr>"
        self.rows[op.node] = row = f"op{next(self._numbers)}"
        on_way = op.node in self.way
        operands = (self._link(one.name, one.partition, one.maker, on_way=on_way) for one in op.operands)
        return (
            f'<tr id="{row}" class="{self._classes(op.partition, on_way)}"><td>{op.indent}{op.node.name}'
            f"<td>{escape(str(op.node.target))}<td>{', '.join(operands)}<td>{self.text(op.partition)}</tr>"
        )

    def _link(self, shown: str, partition: int, maker: Node | None, *, on_way: bool) -> str:
        classes = self._classes(partition, on_way and maker in self.way)
        link = f' href="#{self.rows[maker]}"' if maker in self.rows else ""
        return f'<a class="{classes}"{link} title="{self.text(partition)}">{escape(shown)}</a>'

    def _classes(self, partition: int, on_way: bool) -> str:
        return " ".join(["varying"] * (partition != self.report.partitions.equal) + ["way"] * on_way)


# The ways to what drifts as a graph in the DOT language, for Graphviz to lay out.


def dot_graph(report: Report) -> str:
    r"""Returns the shortest ways from first varying sources to all that drifts, as one graph in DOT.

    Graphviz makes a picture of it: `dot -Tsvg step.dot > step.svg`, or in Python, with no installation of
    Graphviz beside the package, `pygraphviz.AGraph("step.dot").draw("step.svg", prog="dot")`.

    Example:
        >>> args = torch.ones(3), torch.ones(4)
        >>> captured = samebits.replica.capture(lambda w, x: w.add_(x.sum()), *args, world_size=8)
        >>> print(samebits.replica.dot_graph(samebits.replica.analyze(captured)))
        digraph {
        rankdir=LR node [shape=box fontname=monospace]
        "x (batch) at the start of the step: all differ" -> "sum_1 = aten.sum.default: all differ\n[...]"
        "sum_1 = aten.sum.default: all differ\n[...]" -> "add_ = aten.add_.Tensor: all differ\n[...]"
        "add_ = aten.add_.Tensor: all differ\n[...]" -> "w varies: all differ"
        }
    """
    check_report("dot_graph", report)
    lines = ["digraph {", "rankdir=LR node [shape=box fontname=monospace]"]
    for name in report.drifting:
        end, *way, _cure = report.explain_drift(name).split("\n")
        boxes = [json.dumps(line.strip().replace("  [", "\n["), ensure_ascii=False) for line in (*way, end)]
        lines += [f"{one} -> {other}" for one, other in pairwise(boxes)]
    return "\n".join([*dict.fromkeys(lines), "}"])
