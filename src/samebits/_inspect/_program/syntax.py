"""The syntax trees of the user's files, and what the searches through them have in common."""

from __future__ import annotations

import ast
import functools
import linecache

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@functools.lru_cache(maxsize=64)
def syntax_tree(file: str) -> ast.Module | None:
    """Returns the tree of a file, with its name as `samebits_file`; None if there is no source."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None
    tree.samebits_file = file  # type: ignore[attr-defined]
    return tree if tree.body else None


def last_name(node: ast.expr) -> str:
    """Returns "c" of `a.b.c` and of `c`; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def names_of(function: Function) -> set[str]:
    """Returns the parameters and variables of a function."""
    names = parameters_of(function)
    if isinstance(function, ast.Lambda):
        return names
    stored = {
        one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    outer = {
        name for one in ast.walk(function) if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names
    }
    return names | (stored - outer)


def parameters_of(function: Function) -> set[str]:
    """Returns the names of the parameters."""
    given = function.args
    several = [one for one in (given.vararg, given.kwarg) if one is not None]
    return {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several)}


def self_of(function: ast.AST, around: ast.AST) -> str:
    """Returns the name by which a method has its object, by custom "self"; empty for other functions. `around`: its parent."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or not isinstance(
        around, ast.ClassDef
    ):
        return ""
    given = [*function.args.posonlyargs, *function.args.args]
    static = any(last_name(one) == "staticmethod" for one in function.decorator_list)
    return given[0].arg if given and not static else ""


def made_from(node: ast.AST, name: str) -> ast.expr | None:
    """Returns the expression that a statement makes the variable from."""
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        targets, value = (node.targets if isinstance(node, ast.Assign) else [node.target]), node.value
    elif isinstance(node, ast.For | ast.comprehension):
        targets, value = [node.target], node.iter
    elif isinstance(node, ast.withitem):
        targets, value = [node.optional_vars] if node.optional_vars else [], node.context_expr
    else:
        return None
    stored = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
    return value if name in stored else None
