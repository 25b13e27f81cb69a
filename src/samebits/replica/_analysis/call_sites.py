"""Bodies that are called at several sites with values that are not equal on the same ranks.

The analysis gives each site its own result. A tool that outlines or merges such a body, or gives it one rounding
method, needs to know.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import Node

from samebits._inspect.user_code import line_of_node
from samebits.replica._analysis.analysis_context import AnalysisFinding
from samebits.replica._analysis.interpreter import Interpreter

_NAMED = 8


CALL_SITES = "call sites"
"""The kind of the findings."""


def disagreements(frame: Interpreter) -> Iterator[AnalysisFinding]:
    """Yields one finding for each input of a body on which two call sites disagree; it has both lines."""
    sites: dict[object, list[tuple[Node, Interpreter]]] = {}
    for node, body in _calls(frame):
        sites.setdefault(node.args[1] or id(body.layout.module), []).append((node, body))
    for name, called in sites.items():
        (first, one), *others = called
        for index, given in enumerate(_inputs(one)):
            for site, other in others:
                found = _inputs(other)
                if len(found) != len(_inputs(one)) or other.numbers[found[index]][0] == one.numbers[given][0]:
                    continue
                yield AnalysisFinding(
                    CALL_SITES, site, _text(name, given, (first, one), (site, other), index)
                )
                break


def _calls(frame: Interpreter) -> Iterator[tuple[Node, Interpreter]]:
    for node, bodies in frame.bodies.items():
        for body in bodies.values():
            if str(node.target) == "invoke_subgraph":
                yield node, body
            yield from _calls(body)


def _inputs(body: Interpreter) -> list[Node]:
    return [node for node in body.layout.nodes if node.op == "placeholder"]


def _text(
    name: object,
    placeholder: Node,
    first: tuple[Node, Interpreter],
    second: tuple[Node, Interpreter],
    index: int,
) -> str:
    (site, one), (_, other) = first, second
    text = one.known.text
    here, there = text(one.numbers[placeholder][0]), text(other.numbers[_inputs(other)[index]][0])
    later = {node.name: held for node, (held, _) in other.defined.items() if node.op == "call_function"}
    apart = [node.name for node, (held, _) in one.defined.items() if later.get(node.name, held) != held]
    named = ", ".join(apart[:_NAMED]) + (", ..." if len(apart) > _NAMED else "")
    where = f"the call at {line_of_node(site)}" if site.meta.get("stack_trace") else f"the call {site.name}"
    return (
        f"the calls of {name} disagree on {placeholder.name}: {here} in {where}, {there} in this one; "
        f"values inside that differ: {named or 'none'}"
    )
