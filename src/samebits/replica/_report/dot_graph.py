"""The ways to what drifts as a graph in the DOT language, for Graphviz to lay out."""

from __future__ import annotations

import json
from itertools import pairwise

from samebits.replica._report.report import Report, check_report


def dot_graph(report: Report) -> str:
    r"""Returns the shortest ways from first varying sources to all that drifts as one graph in the DOT language.

    Graphviz makes a picture of it: `dot -Tsvg step.dot > step.svg`, or in Python, with no installation of Graphviz beside
    the package, `pygraphviz.AGraph("step.dot").draw("step.svg", prog="dot")`.

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
