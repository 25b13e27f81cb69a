"""Variables that code before a loop computes from the state of a run: a resume computes them from another.

`k = int((scores(model) > 0.5).sum())` between `with` and the loop: there a resumed run has the weights of its
commit. A pid, a port or an argument may differ from process to process; such a variable may not.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from types import FrameType, FunctionType
from typing import Any

from samebits._inspect._program.syntax import Sources, called, made_in, walk


def derived_names(frame: FrameType, held: Collection[int]) -> set[str]:
    """Returns the variables, made inside `with`, that come from objects with the identities `held`."""
    variables = {**frame.f_globals, **frame.f_locals}
    roots = {name for name, value in variables.items() if id(value) in held}
    scope = Sources([frame.f_code]).scope_of(frame.f_code)
    if scope is None or not roots:
        return set()
    line = frame.f_lineno
    blocks = [one for one in walk(scope) if isinstance(one, ast.With) and _has(one, line)]
    first = blocks[0].lineno if blocks else 0
    made = [
        (name, value)
        for name, values in made_in(scope).items()
        for value, _ in values
        if first < value.lineno < line
    ]
    found = set(roots)
    while more := {n for n, value in made if n not in found and _reads(value, found, roots, variables)}:
        found |= more
    return found - roots


def _has(node: ast.With, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _reads(value: ast.expr, names: set[str], roots: set[str], variables: Mapping[str, Any]) -> bool:
    nodes = list(walk(value))
    if any(isinstance(one, ast.Name) and one.id in names for one in nodes):
        return True
    functions = [variables.get(called(one)) for one in nodes if isinstance(one, ast.Call)]
    return any(
        roots.intersection(one.__code__.co_names) for one in functions if isinstance(one, FunctionType)
    )
