"""The syntax trees of the user's files, and what the searches through them have in common."""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import types
from collections.abc import Iterable, Iterator

from samebits._objects.budget import spend

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


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yields a node and all below it; four are a step of the check that goes on."""
    for number, one in enumerate(ast.walk(node)):
        if number % 4 == 0:
            spend()
        yield one


class Sources:
    """The syntax trees of the files of some functions, with the parent of every node."""

    def __init__(self, codes: Iterable[types.CodeType]) -> None:
        files = sorted({code.co_filename for code in codes})
        self.trees = [tree for tree in map(syntax_tree, files) if tree is not None]
        self._nodes = [node for tree in self.trees for node in walk(tree)]
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        self.functions: dict[str, list[ast.FunctionDef]] = {}
        self.calls: dict[str, list[ast.Call]] = {}
        """All calls, by the last name of what is called."""
        self._reads: dict[str, list[ast.Name]] = {}
        imported, stored = set[str](), set[str]()
        for node in self.nodes:
            if isinstance(node, ast.FunctionDef):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._reads.setdefault(node.id, []).append(node)
            elif isinstance(node, ast.Call):
                self.calls.setdefault(called(node), []).append(node)
            elif isinstance(node, ast.Import):
                imported |= {one.asname or one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.Name | ast.arg):
                stored.add(node.id if isinstance(node, ast.Name) else node.arg)
        self.modules = imported - stored
        """The names of imported modules, which no variable has."""
        kinds = [node for node in self.nodes if isinstance(node, ast.ClassDef)]
        self.bases = {node.name: [last_name(base) for base in node.bases] for node in kinds}
        """The names of the bases of the user's classes, by name."""

    @property
    def nodes(self) -> list[ast.AST]:
        """All nodes. Whoever asks goes through them."""
        spend(1 + len(self._nodes) // 8)
        return self._nodes

    def scope_around(self, node: ast.AST) -> Scope:
        """Returns the function or module that a node is in; of a function, itself."""
        while not isinstance(node, Scope):
            node = self.parents[node]
        return node

    def reads(self, scope: Scope, name: str) -> Iterator[tuple[ast.Name, Scope]]:
        """Yields the reads of a variable, also in functions inside the scope that do not have their own."""
        for node in self._reads.get(name, ()):
            spend()
            above, functions = self.parents[node], list[Function]()
            while above is not scope and above in self.parents:
                functions += [above] if isinstance(above, Function) else []
                above = self.parents[above]
            if above is scope and not any(name in names_of(one) for one in functions):
                yield node, functions[0] if functions else scope

    def scope_of(self, code: types.CodeType) -> Scope | None:
        """Returns the tree of a function, by its file, name and line; None if there is none."""
        for tree in self.trees:
            if tree.samebits_file != code.co_filename:  # type: ignore[attr-defined]
                continue
            if code.co_name == "<module>":
                return tree
            for node in walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == code.co_name:
                    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                    if first <= code.co_firstlineno <= node.lineno:
                        return node
        return None

    def is_self(self, name: str, scope: ast.AST) -> bool:
        """Returns True for the object of a method; inside functions of a method for the usual name."""
        return name == "self" or (bool(name) and name == self_of(scope, self.parents.get(scope, scope)))

    def functions_of(self, call: ast.Call) -> list[ast.FunctionDef]:
        """Returns the user's functions that a call may call, by name, and by the object's class if known."""
        named = self.functions.get(called(call), [])
        if not named or not isinstance(call.func, ast.Attribute):
            plain = [one for one in named if not isinstance(self.parents[one], ast.ClassDef)]
            if plain or not named or not hasattr(builtins, called(call)):
                return plain or named  # `update = meter.update`
            return named if any(values_of(tree, called(call)) for tree in self.trees) else []
        if isinstance(call.func.value, ast.Name) and call.func.value.id in self.modules:
            named = [one for one in named if not isinstance(self.parents[one], ast.ClassDef)]  # `json.dump`
        kinds = self.classes_of(call.func.value, self.scope_around(call))
        return [one for one in named if kinds is None or getattr(self.parents[one], "name", "") in kinds]

    def parameter(self, function: Function, call: ast.Call, given: ast.AST) -> str | None:
        """Returns the parameter of a function that gets an argument of a call, if one does."""
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        if not isinstance(given, ast.keyword):
            at = call.args.index(given) + bool(self_of(function, self.parents[function]))  # type: ignore[arg-type]
            return names[at] if at < len(names) else None
        if given.arg in {*names, *(one.arg for one in function.args.kwonlyargs)}:
            return given.arg
        return None if function.args.kwarg is None else function.args.kwarg.arg

    def makers_of(self, call: ast.Call) -> list[ast.FunctionDef]:
        """Returns what a call of a user's class runs."""
        made = self.functions.get("__init__", [])
        return [one for one in made if getattr(self.parents[one], "name", "") == called(call)]

    def classes_of(self, holder: ast.expr, scope: Scope) -> set[str] | None:
        """Returns the names of the classes that an object may have, with their bases; None if not known."""
        if isinstance(holder, ast.Name) and self.is_self(holder.id, scope):
            around: ast.AST = scope
            while not isinstance(around, ast.ClassDef | ast.Module):
                around = self.parents[around]
            return self._with_bases({around.name}) if isinstance(around, ast.ClassDef) else None
        made = self.made_as(holder, scope)
        kinds = {called(value) if isinstance(value, ast.Call) else "" for value in made}
        known = kinds and all(kind in self.bases for kind in kinds)
        return self._with_bases(kinds) if known else None

    def made_as(self, holder: ast.expr, scope: Scope) -> list[ast.expr]:
        """Returns what is assigned to a variable or an attribute, without constants."""
        name = last_name(holder)
        made = values_of(scope, name) if isinstance(holder, ast.Name) else []
        made = made or [value for tree in self.trees for value in values_of(tree, name or "?")]
        return [value for value in made if not isinstance(value, ast.Constant)]  # `meter = None` at first

    def _with_bases(self, kinds: set[str]) -> set[str]:
        while more := {base for kind in kinds for base in self.bases.get(kind, ())} - kinds:
            kinds = kinds | more
        return kinds


def last_name(node: ast.expr) -> str:
    """Returns "c" of `a.b.c` and of `c`; empty for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@functools.lru_cache(maxsize=4096)
def names_of(function: Function) -> set[str]:
    names = parameters_of(function)
    if isinstance(function, ast.Lambda):
        return names
    found = [one for one in walk(function) if isinstance(one, ast.Name)]
    stored = {one.id for one in found if isinstance(one.ctx, ast.Store)}
    return names | (stored - declared_outside(function))


def parameters_of(function: Function) -> set[str]:
    given = function.args
    several = [one for one in (given.vararg, given.kwarg) if one is not None]
    return {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several)}


def self_of(function: ast.AST, around: ast.AST) -> str:
    """Returns a method's name for its object ("self"); empty for other functions. `around`: its parent."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or not isinstance(
        around, ast.ClassDef
    ):
        return ""
    given = [*function.args.posonlyargs, *function.args.args]
    static = any(last_name(one) == "staticmethod" for one in function.decorator_list)
    return given[0].arg if given and not static else ""


@functools.lru_cache(maxsize=4096)
def made_in(scope: ast.AST) -> dict[str, list[tuple[ast.expr, bool]]]:
    """Returns the expressions that variables are made from, by name; True: it is an element of that."""
    found: dict[str, list[tuple[ast.expr, bool]]] = {}
    for node in walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            targets, value = (node.targets if isinstance(node, ast.Assign) else [node.target]), node.value
        elif isinstance(node, ast.For | ast.comprehension):
            targets, value = [node.target], node.iter
        elif isinstance(node, ast.withitem):
            targets, value = [node.optional_vars] if node.optional_vars else [], node.context_expr
        else:
            continue
        stored = {one.id for target in targets for one in walk(target) if isinstance(one, ast.Name)}
        if value is not None:  # `n: int`
            made = value, isinstance(node, ast.For | ast.comprehension)
            for name in stored:
                found.setdefault(name, []).append(made)
    return found


def called(call: ast.Call) -> str:
    """Returns the last name of the called function: "add_scalar" of `writer.add_scalar(...)`."""
    return last_name(call.func)


def values_of(scope: ast.AST, name: str) -> list[ast.expr]:
    """Returns what is assigned to the variable, or to attributes, of this name."""
    return _values_in(scope).get(name, [])


@functools.lru_cache(maxsize=4096)
def _values_in(scope: ast.AST) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in walk(scope):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in {last_name(target) for target in targets}:
                found.setdefault(name, []).append(node.value)
    return found


def names_in(node: ast.AST) -> set[str]:
    return {one.id for one in walk(node) if isinstance(one, ast.Name)}


def root_of(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def parts_of(node: ast.expr) -> set[str]:
    """Returns the names on the way to a value: `self`, `bar` and `n` of `self.bar[0].n`."""
    names = set()
    while isinstance(node, ast.Attribute | ast.Subscript):
        names.add(last_name(node))
        node = node.value
    return {*names, last_name(node)} - {"", "self"}


@functools.lru_cache(maxsize=4096)
def declared_outside(scope: ast.AST) -> frozenset[str]:
    declared = [one.names for one in walk(scope) if isinstance(one, ast.Global | ast.Nonlocal)]
    return frozenset().union(*declared)
