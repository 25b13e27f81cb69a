"""Variables that code before a loop computes from the state of a run: a resume computes them from another.

`k = int((scores(model) > 0.5).sum())` between `with` and the loop: there a resumed run has the weights of its
commit. A pid, a port or an argument may differ from process to process; such a variable may not.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any

from samebits._program.sources import Sources, called, root_of, walk


def derived_names(frame: FrameType, held: Collection[int]) -> set[str]:
    """Returns the variables, set or changed inside `with`, that come from objects with these identities."""
    variables = {**frame.f_globals, **frame.f_locals}
    roots = {name for name, value in variables.items() if id(value) in held}
    made = _changes_around(frame.f_code, frame.f_lineno) if roots else []
    found = set(roots)
    while more := {n for n, value in made if n not in found and _reads(value, found, roots, variables)}:
        found |= more
    return found - roots


@functools.lru_cache(maxsize=64)
def _changes_around(code: CodeType, line: int) -> list[tuple[str, ast.expr]]:
    """Returns the changes of variables in the `with` around a line, outside of loops over steps."""
    scope = Sources([code]).scope_of(code)
    nodes = [] if scope is None else list(walk(scope))
    blocks = [one for one in nodes if isinstance(one, ast.With) and _has(one, line)]
    first = blocks[0].lineno if blocks else 0
    loops = [one for one in nodes if isinstance(one, ast.For) and ".steps(" in ast.unparse(one.iter)]
    statements = [node for node in nodes if isinstance(node, ast.stmt) and node.lineno > first]
    outside = [node for node in statements if not any(_has(one, node.lineno) for one in loops)]
    return [change for node in outside for change in _changes(node)]


def _changes(node: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yields the variables that a statement sets or changes, each with what it gets."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = [one for target in targets for one in walk(target)]
        yield from ((one.id, node.value) for one in parts if isinstance(one, ast.Name))
    elif isinstance(node, ast.For):
        yield from ((one.id, node.iter) for one in walk(node.target) if isinstance(one, ast.Name))
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):  # `seen.append(loss)`
        name = root_of(node.value.func) if isinstance(node.value.func, ast.Attribute) else ""
        yield from ((name, one) for one in node.value.args if name)


def _has(node: ast.With | ast.For, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _reads(value: ast.expr, names: set[str], roots: set[str], variables: Mapping[str, Any]) -> bool:
    nodes = list(walk(value))
    if any(isinstance(one, ast.Name) and one.id in names for one in nodes):
        return True
    functions = [variables.get(called(one)) for one in nodes if isinstance(one, ast.Call)]
    codes = [one.__code__ for one in functions if isinstance(one, FunctionType)]
    return any(roots.intersection(code.co_names) for code in codes)
