"""The statements of a program by line: the variables that each reads and writes, from the source."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from samebits._program import syntax_tree

ATTRIBUTE = "."
"""Begins the key of an attribute: those of one name are one variable, whichever object has it."""
_HEADERS = ("test", "iter", "target", "items", "subject", "decorator_list", "type")
"""The parts of a compound statement that are its own, not those of the statements in it."""


@dataclass(frozen=True)
class Statement:
    """A statement, all of a line, or the header of a compound one; lines count from 1."""

    first: int
    last: int
    reads: tuple[str, ...]
    """Names ("best"), and attributes (".best")."""
    writes: tuple[tuple[str, ...], ...]
    """Paths of what it may change: ("best",), ("self", "best"), ("counts",) of `counts[word] += 1`."""


@functools.lru_cache(maxsize=1024)
def statements_of(file: str) -> dict[int, Statement]:
    """Returns the innermost statement of each line of a file; empty if there is no source."""
    tree = syntax_tree(file)
    found: dict[int, Statement] = {}
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.stmt | ast.excepthandler):
            one = _statement(node)
            lines = range(one.first, one.last + 1)
            if (other := found.get(one.first)) is not None:  # `x = 1; y = 2`: they share a line, and are one
                lines = range(min(one.first, other.first), max(one.last, other.last) + 1)
                reads, writes = (
                    dict.fromkeys(other.reads + one.reads),
                    dict.fromkeys(other.writes + one.writes),
                )
                one = Statement(lines[0], lines[-1], tuple(reads), tuple(writes))
            found.update(dict.fromkeys(lines, one))
    return found


def _statement(node: ast.stmt | ast.excepthandler) -> Statement:
    body = getattr(node, "body", None)
    if not isinstance(body, list):
        parts: list[ast.AST] = [node]
        last = node.end_lineno or node.lineno
    else:
        headers = (getattr(node, name, None) for name in _HEADERS)
        parts = [part for one in headers if one for part in (one if isinstance(one, list) else [one])]
        last = max([node.lineno, *(getattr(part, "end_lineno", 0) or 0 for part in parts)])
    nodes = [one for part in parts for one in ast.walk(part)]
    reads = dict.fromkeys(key for one in nodes for key in _read(one))
    writes = dict.fromkeys(path for one in [node, *nodes] for path in _written(one))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):  # `set_lr(optimizer, lr)`
        writes |= {(one.id,): None for one in node.value.args if isinstance(one, ast.Name)}
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        writes[node.name,] = None
    return Statement(node.lineno, last, tuple(reads), tuple(writes))


def _read(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        yield ATTRIBUTE + node.attr
    elif isinstance(node, ast.AugAssign):
        yield from (path[-1] if len(path) == 1 else ATTRIBUTE + path[-1] for path in _written(node))


def _written(node: ast.AST) -> Iterator[tuple[str, ...]]:
    if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.For | ast.AsyncFor | ast.NamedExpr):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    elif isinstance(node, ast.withitem):
        targets = [node.optional_vars] if node.optional_vars else []
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        targets = [node.func.value]  # `seen.append(loss)` may change `seen`
    else:
        return
    for target in targets:
        yield from _paths(target)


def _paths(target: ast.AST) -> Iterator[tuple[str, ...]]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _paths(part)
    elif isinstance(target, ast.Starred | ast.Subscript):
        yield from _paths(target.value)
    elif isinstance(target, ast.Attribute):
        yield from ((*path, target.attr) for path in _paths(target.value))
    elif isinstance(target, ast.Name):
        yield (target.id,)


def scoped(name: str, code: CodeType, frame: int) -> str:
    """Returns the key of a variable: that of a function is another one in each call."""
    own = name in code.co_varnames and name not in code.co_cellvars
    return f"{frame}:{name}" if own and not name.startswith(ATTRIBUTE) else name


def value_of(path: tuple[str, ...], variables: dict[str, Any], around: dict[str, Any]) -> tuple[bool, Any]:
    """Returns (True, value) of a path, found without running code of the user's; (False, None) if not."""
    root = path[0]
    if root not in variables and root not in around:
        return False, None
    value = variables[root] if root in variables else around[root]
    for name in path[1:]:
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict) and name in held:
            value = held[name]
        elif type(value).__module__.startswith("samebits.") and hasattr(value, name):  # `run.state.best`
            value = getattr(value, name)
        else:
            return False, None
    return True, value
