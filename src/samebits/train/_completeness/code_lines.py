"""The program's own lines around a loop: where a line is pasted, and what the names there are.

Only an error asks: the source is parsed then. Without one (a prompt, `exec`) places are not known.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, NamedTuple

from samebits._inspect.user_code import cell_of, is_library, is_user_type, outwards
from samebits._objects.parts import attributes_of


class LineUse(NamedTuple):
    """A line with a variable."""

    line: int
    in_function: bool
    """True in a function inside the variable's own."""
    sets: bool


class LoopSource:
    """The function that a frame runs, as its file has it, and the loop in it."""

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.run = _expression_of_run(frame)
        """The text by which the code of the frame has the run; None if it does not."""
        name = frame.f_code.co_filename
        near = os.path.relpath(name)
        self._file = cell_of(name) or (name if near.startswith("..") else near)
        self._lines = linecache.getlines(name, frame.f_globals)
        self._scope = _scope("".join(self._lines), frame)
        self._loop = _loop_at(self._scope, frame.f_lineno)
        self.is_over_epochs = _is_over_epochs(self._loop)
        self._first = 0 if self._loop is None else self._loop.lineno

    @property
    def before(self) -> str:
        """The place before the loop, or before the loop over epochs around it; empty if it is not known."""
        return "" if self._loop is None else f"{self._file}, before line {self._first}"

    def before_of(self, name: str) -> str:
        """The place for a line about a variable: before the outermost plain loop that does not set it."""
        return "" if self._loop is None else f"{self._file}, before line {self._first_of(name)}"

    def _first_of(self, name: str) -> int:
        sets = [use.line for use in self.uses(name) if use.sets and use.line < self._first]
        outside = (one.lineno for one in self.rounds() if all(at < one.lineno for at in sets))
        return min([*outside, self._first])

    def uses(self, name: str) -> list[LineUse]:
        """Returns the lines with a variable."""
        return [] if self._loop is None else list(_uses(self._scope, name))

    def targets(self) -> dict[int, ast.expr]:
        """Returns the parts of the target of the `for` statement at the frame's line, by their place."""
        line, nodes = self.frame.f_lineno, ast.walk(self._scope or ast.Pass())
        loops = [one for one in nodes if isinstance(one, ast.For) and one.lineno <= line]
        target = next((one.target for one in loops if line <= (one.iter.end_lineno or 0)), None)
        return dict(enumerate(target.elts)) if isinstance(target, ast.Tuple) else {}

    def lines_to_change(self, name: str) -> list[int]:
        """Returns the numbers of the lines that have a variable from the loop on, or in a function."""
        first = self._first_of(name)
        return sorted({use.line for use in self.uses(name) if use.in_function or use.line >= first})

    def file_and_lines_of(self, name: str) -> tuple[str, list[int]] | None:
        """Returns where a variable becomes one of `run.state` if a function begins it before its loop.

        A function that each epoch calls begins it anew, so its first value must be set there, too. None for a
        parameter, for a variable of a module, and where the run itself is opened in the function.
        """
        if not isinstance(self._scope, ast.FunctionDef) or self._runs():
            return None
        arguments = {one.arg for one in ast.walk(self._scope.args) if isinstance(one, ast.arg)}
        uses = [use for use in self.uses(name) if not use.in_function]
        begins = any(use.sets and use.line < self._first for use in uses)
        lines = sorted({use.line for use in self.uses(name)})
        return (self._file, lines) if begins and name not in arguments else None

    def places(self, name: str) -> list[str]:
        """Returns the places for a line about a variable's object: before the loop, behind what sets it."""
        sets = [use.line for use in self.uses(name) if use.sets and not use.in_function]
        behind = [self._behind(line) for line in sorted({line for line in sets if line >= self._first})]
        is_made_before = not sets or min(sets) < self._first or self._is_set_in_another_cell(name)
        return [*([self.before_of(name)] if is_made_before else []), *filter(None, behind)]

    def _is_set_in_another_cell(self, name: str) -> bool:
        """Returns True for a variable of a notebook that a statement of a cell, and no loop, sets."""
        found, is_cell = False, cell_of(self.frame.f_code.co_filename) is not None
        for text in self.frame.f_globals.get("In", ()) if is_cell else ():
            with suppress(SyntaxError):  # a line of IPython's own
                plain = [one for one in ast.parse(text).body if isinstance(one, ast.Assign | ast.AnnAssign)]
                found |= any(use.sets for one in plain for use in _uses(one, name))
        return found

    def behind_first(self, name: str) -> str | None:
        """Returns the place behind the statement before the loop that sets a variable first."""
        lines = sorted(use.line for use in self.uses(name) if use.sets and not use.in_function)
        if not lines or lines[0] >= self._first:
            return None
        body = next((one for one in _bodies(self._scope, lines[0])), [])
        end = next((one.end_lineno for one in body if _has(one, lines[0])), None)
        return f"{self._file}, after line {end}"

    def rounds(self) -> list[ast.For | ast.While]:
        """Returns the plain loops around the loop of the run, inside its `with`."""
        line, nodes = self.frame.f_lineno, ast.walk(self._scope or ast.Pass())
        loops = [one for one in nodes if isinstance(one, ast.For | ast.While) and _has(one, line)]
        opened = max((run.lineno for run in self._runs()), default=0)
        return [one for one in loops if opened < one.lineno < self._first]

    def _runs(self) -> list[ast.With]:
        """Returns the `with` statements around the loop that open a run."""
        line, nodes = self.frame.f_lineno, ast.walk(self._scope or ast.Pass())
        around = (one for one in nodes if isinstance(one, ast.With) and _has(one, line))
        return [one for one in around if "Run(" in ast.unparse(one.items[-1])]

    def lines_behind_run(self, name: str) -> list[int]:
        """Returns the lines that set a variable behind a run of several; none if its `with` sets it, too."""
        nodes = list(ast.walk(self._scope or ast.Pass()))
        for run in self._runs():
            loops = [one for one in nodes if isinstance(one, ast.For | ast.While) and _has(one, run.lineno)]
            sets = [use.line for use in self.uses(name) if use.sets]
            behind = [at for at in sets if any(_has(one, at) and at > (run.end_lineno or 0) for one in loops)]
            if behind and not any(_has(run, at) for at in sets):
                return behind
        return []

    def is_set_in_round(self, name: str) -> bool:
        """Returns True for a variable that is set in the body of a plain loop around the loop of the run."""
        sets = [use.line for use in self.uses(name) if use.sets and use.line < self._first]
        return any(_has(one, at) for one in self.rounds() for at in sets)

    def begins_as_none(self, name: str) -> bool:
        """Returns True for a variable that the code before the loop sets to None, and to nothing else."""
        set_before = [use for use in self.uses(name) if use.sets and use.line < self._first]
        nones = [
            one
            for one in ast.walk(self._scope or ast.Pass())
            if isinstance(one, ast.Assign) and one.lineno < self._first
            if isinstance(one.value, ast.Constant) and one.value.value is None
            if any(isinstance(target, ast.Name) and target.id == name for target in one.targets)
        ]
        return bool(nones) and len(nones) == len(set_before)

    def _behind(self, line: int) -> str | None:
        """Returns the place behind the innermost statement at a line that another statement follows."""
        for body in _bodies(self._loop, line):
            at, statement = next((n, one) for n, one in enumerate(body) if _has(one, line))
            if at + 1 < len(body) and body[at + 1].lineno > (statement.end_lineno or line):
                return f"{self._file}, before line {body[at + 1].lineno}"
            begins = not self._lines[statement.lineno - 1].encode()[: statement.col_offset].strip()
            if statement.lineno == (statement.end_lineno or line) and begins:
                return f"{self._file}, after line {line}"
        return None

    def name_of_module(self, name: str) -> str:
        """Returns the text by which the code of the frame has an imported module."""
        module = sys.modules.get(name)
        scopes = (self.frame.f_locals, self.frame.f_globals)
        names = (one for scope in scopes for one, value in scope.items() if value is module)
        return next(names, name if name == "samebits" else f'sys.modules["{name}"]')

    def imports(self, line: str) -> list[str]:
        """Returns the imports that a line needs besides those of the program."""
        names = self.frame.f_locals.keys() | self.frame.f_globals.keys()
        return [f"import {one}" for one in ("samebits", "sys") if f"{one}." in line and one not in names]


def sources_around(frame: FrameType | None) -> list[LoopSource]:
    """Returns the user's functions from the one that fetches a batch outwards."""
    found = []
    for one in outwards(frame):
        is_ours = str(one.f_globals.get("__name__")).startswith("samebits.")
        if not is_ours and not is_library(one.f_code.co_filename):
            found.append(LoopSource(one))
    return found


def _expression_of_run(frame: FrameType) -> str | None:
    for scope in (frame.f_locals, frame.f_globals):
        for name, value in scope.items():
            if _is_run(value):
                return name
    for name, value in frame.f_locals.items():
        if type(value).__module__ == "samebits.train._loop.epochs" and hasattr(value, "run"):
            return f"{name}.run"
        for inner, held in attributes_of(value).items() if is_user_type(type(value)) else ():
            if _is_run(held) and not type(value).__module__.startswith("samebits."):
                return f"{name}.{inner}"
    return None


def _is_run(value: Any) -> bool:
    return type(value).__module__ == "samebits.train._run" and value.run_dir is not None


def _scope(text: str, frame: FrameType) -> ast.AST | None:
    """Returns the function of a frame; None without the source that it was made from."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    if frame.f_code.co_name == "<module>":
        return tree
    functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    first = frame.f_code.co_firstlineno  # that of a decorator, if there is one
    named = [one for one in functions if one.name == frame.f_code.co_name]
    begins = (one for one in named if first in (one.lineno, *(d.lineno for d in one.decorator_list)))
    return next(begins, None)


def _loop_at(scope: ast.AST | None, line: int) -> ast.For | ast.While | None:
    """Returns the loop at a line; if that is in an epoch of `run.epochs`, the loop over epochs."""
    loops = [] if scope is None else [one for one in ast.walk(scope) if isinstance(one, ast.For | ast.While)]
    around = sorted((one for one in loops if _has(one, line)), key=lambda one: one.lineno)
    over_epochs = [one for one in around if _is_over_epochs(one)]
    return next(iter([*over_epochs, *around[-1:]]), None)


def _is_over_epochs(loop: Any) -> bool:
    return isinstance(loop, ast.For) and ".epochs(" in ast.unparse(loop.iter)


def _has(node: Any, line: int) -> bool:
    return bool(node.lineno <= line <= node.end_lineno)


def _uses(node: ast.AST | None, name: str, depth: int = 0) -> Iterator[LineUse]:
    """Yields the uses of a variable of the function at depth 0, and in functions inside it."""
    if isinstance(node, ast.Name) and node.id == name:
        yield LineUse(node.lineno, depth > 1, isinstance(node.ctx, ast.Store | ast.Del))
    elif isinstance(node, ast.arg) and node.arg == name:
        yield LineUse(node.lineno, depth > 1, True)
    if node is None:
        return
    is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module)
    found = [use for child in ast.iter_child_nodes(node) for use in _uses(child, name, depth + is_function)]
    if is_function and depth and any(use.sets for use in found):
        declared = (one for one in ast.walk(node) if isinstance(one, ast.Global | ast.Nonlocal))
        if not any(name in one.names for one in declared):
            return  # a variable of its own
    yield from found


def _bodies(node: Any, line: int) -> list[list[ast.stmt]]:
    """Returns the lists of statements with one at a line, innermost first."""
    for part in ("body", "orelse", "finalbody", "handlers"):
        body = getattr(node, part, [])
        for one in body:
            if _has(one, line):
                return [*_bodies(one, line), *([body] if part != "handlers" else [])]
    return []
