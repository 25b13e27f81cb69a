"""Values made once, from data or random numbers: `if self.mean is None: self.mean = x.mean(0)`.

A resumed program makes such a value anew, from another batch. One that is made of shapes and constants alone
(a mask, a table of positions) is the same each time, unless it is made only at some step, or at some loss:
`if step.number == 30: self.phase = "fine"`. The search reads the syntax trees of the user's files,
so it needs their source.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Iterator

from samebits._objects.budget import spend
from samebits._program.sources import Scope, Sources, last_name, made_in, parameters_of, self_of, walk
from samebits._program.vocabulary import COPIES, FED_METHODS, LIKE, OF_SHAPE, PLAIN_TYPES, draws

_DEPTH = 6
_TESTED = ast.If | ast.IfExp | ast.While


class DataDependence:
    """The assignments in the user's files, with the question of what they are made from.

    The mask of a transformer, `self.mask = torch.ones(x.shape[1], x.shape[1]).triu()`, does not depend on
    data; the first batch's mean, `self.mean = x.mean(0)`, does.
    """

    def __init__(self, codes: Iterable[types.CodeType]) -> None:
        self._sources = Sources(codes)
        self._known: dict[tuple[int, str], bool] = {}
        self._chosen: dict[tuple[int, str], bool] = {}

    def attribute(self, name: str, *, values: bool = True) -> bool:
        """Returns True if such an attribute is set from data or random numbers, outside of `__init__`.

        Or when they, or the step, say so; `values`: False: only that counts.
        """
        return any(
            isinstance(target, ast.Attribute)
            and target.attr == name
            and getattr(self._scope(target), "name", "") != "__init__"
            and ((values and self._depends(value, self._scope(target), 0)) or self._is_chosen(target, name))
            for target, value in self._assignments()
        )

    def variable(self, name: str) -> bool:
        """Returns True if a function sets the global variable of this name from data or random numbers."""
        return any(
            isinstance(target, ast.Name)
            and target.id == name
            and (self._depends(value, self._scope(target), 0) or self._is_chosen(target, name))
            for target, value in self._assignments()
        )

    def _is_chosen(self, node: ast.AST, name: str, depth: int = 0) -> bool:
        """Returns True if data or a step decide if a statement runs, in its function or where that is called.

        Not of a function that asks for the value itself, which makes it whenever it is missing.
        """
        scope = self._scope(node)
        if any(self._depends(test, scope, 0) for test in self._tests_around(node, scope)):
            return True
        if isinstance(scope, ast.Module | ast.Lambda) or depth > _DEPTH or _asks_for(scope, name):
            return False
        key = id(scope), name
        if key not in self._chosen:  # each caller's callers would be asked anew, at each level
            self._chosen[key] = False
            calls = self._sources.calls.get(scope.name, ())
            self._chosen[key] = any(self._is_chosen(one, name, depth + 1) for one in calls)
        return self._chosen[key]

    def _tests_around(self, node: ast.AST, scope: Scope) -> Iterator[ast.expr]:
        while node is not scope:
            above = self._sources.parents[node]
            if isinstance(above, _TESTED) and node is not above.test:
                yield above.test
            node = above

    def _assignments(self) -> Iterator[tuple[ast.expr, ast.expr]]:
        for node in self._sources.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    inner = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                    yield from ((one, node.value) for one in inner)
            elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
                yield node.target, node.value

    def _scope(self, node: ast.AST) -> Scope:
        return self._sources.scope_around(self._sources.parents[node])

    def _depends(self, node: ast.AST, scope: Scope, depth: int) -> bool:
        """Returns True if the value of an expression depends on data or random numbers."""
        spend()
        if isinstance(node, ast.Attribute):
            held = node.attr not in OF_SHAPE and self._depends(node.value, scope, depth)
            return held or last_name(node.value) == "state"  # run.state.best
        if isinstance(node, ast.Call):
            return self._call_depends(node, scope, depth)
        if isinstance(node, ast.Name):
            return self._name_depends(node.id, scope, depth)
        if isinstance(node, ast.Lambda):
            return False
        return any(self._depends(one, scope, depth) for one in ast.iter_child_nodes(node))

    def _call_depends(self, call: ast.Call, scope: Scope, depth: int) -> bool:
        name = last_name(call.func)
        if draws(call) or name in COPIES:
            return not (name == "item" and not self._depends(call.func, scope, depth))
        if name in LIKE:
            return False
        holder = call.func.value if isinstance(call.func, ast.Attribute) and name not in OF_SHAPE else None
        arguments = [*call.args, *(one.value for one in call.keywords)]
        if any(self._depends(one, scope, depth) for one in (*arguments, *([holder] if holder else []))):
            return True
        return depth < _DEPTH and any(
            isinstance(inner, ast.Call) and (draws(inner) or last_name(inner.func) in COPIES)
            for function in self._sources.functions.get(name, ())
            for inner in walk(function)
        )

    def _name_depends(self, name: str, scope: Scope, depth: int) -> bool:
        key = id(scope), name
        if key in self._known:
            return self._known[key]
        if depth > _DEPTH:
            return True
        self._known[key] = False  # a cycle: `x = x + 1`
        self._known[key] = self._is_fed(name, scope, depth + 1)
        return self._known[key]

    def _is_fed(self, name: str, scope: Scope, depth: int) -> bool:
        if not isinstance(scope, ast.Module) and name in parameters_of(scope):
            return self._parameter_is_fed(name, scope, depth)
        made = made_in(scope).get(name)
        if not made:
            return not isinstance(scope, ast.Module) and self._is_fed(name, self._scope(scope), depth)
        return any(self._depends(value, scope, depth) or (loop and _is_loader(value)) for value, loop in made)

    def _parameter_is_fed(self, name: str, scope: Scope, depth: int) -> bool:
        """Returns True unless every call of the function gives the parameter what depends on no data."""
        assert not isinstance(scope, ast.Module)
        if name == self_of(scope, self._sources.parents[scope]):
            return False
        given = [*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs]
        kind = next((one.annotation for one in given if one.arg == name), None)
        if kind is not None and last_name(kind) in PLAIN_TYPES:
            return False
        if isinstance(scope, ast.Lambda) or scope.name in FED_METHODS or scope.name.startswith("on_"):
            return True
        calls = self._sources.calls.get(scope.name, [])
        for call in calls:
            values = [one.value for one in call.keywords if one.arg in (name, None)]
            values += [one for one in call.args if self._sources.parameter(scope, call, one) == name]
            if any(self._depends(one, self._scope(call), depth) for one in values):
                return True
        return not calls and self._is_mentioned(scope.name)  # a hook, a callback

    def _is_mentioned(self, name: str) -> bool:
        loads = [one for one in self._sources.nodes if isinstance(one, ast.Attribute | ast.Name)]
        return any(isinstance(one.ctx, ast.Load) and last_name(one) == name for one in loads)


def _asks_for(scope: ast.AST, name: str) -> bool:
    """Returns True if a condition in a function mentions the value: `if self.mask is None`."""
    tests = [one.test for one in ast.walk(scope) if isinstance(one, _TESTED)]
    found = [one for test in tests for one in ast.walk(test)]
    values = [one for one in found if isinstance(one, ast.expr)]
    return any((one.value if isinstance(one, ast.Constant) else last_name(one)) == name for one in values)


def _is_loader(node: ast.expr) -> bool:
    """Returns True unless a loop goes over plain numbers: `range(n)`."""
    return not (isinstance(node, ast.Call) and last_name(node.func) == "range")
