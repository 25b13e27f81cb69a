"""Values that flow only into output: a print, a log, a file of figures, a progress bar.

A resumed program prints other figures then, and ends with the same weights. The search reads the syntax trees
of the user's files, so it needs their source, and follows names: from a variable to each expression that
reads it, to the variables that get the result, and so on. What it does not know counts as training: a
condition around anything but output, a call that is no output and no arithmetic, an argument of an optimizer.
"""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Collection, Iterable, Iterator, Sequence

from samebits._objects.budget import spend
from samebits._program.sources import (
    Function,
    Scope,
    Sources,
    called,
    declared_outside,
    last_name,
    made_in,
    names_in,
    names_of,
    parameters_of,
    parts_of,
    root_of,
    values_of,
    walk,
)
from samebits._program.vocabulary import (
    CALCULATE,
    COLLECTS,
    CONTAINERS,
    FETCHERS,
    FILLS,
    ITERATES,
    KEEPS,
    LIBRARIES,
    NAMES,
    NAMESPACES,
    OUTPUT,
    OUTPUT_MODULES,
    PLAIN_BASES,
    QUIET,
    READS,
    REFLECTS,
    TRAINED,
    TRAINS,
    is_arithmetic,
    is_number,
)

_TEXTS = frozenset({"__str__", "__repr__", "__format__"})
_BY_NAME = frozenset({"__getattr__", "__getattribute__"})
"""Methods whose callers write the attribute's name."""
_DEPTH = 40


class OutputFlow:
    """The user's files, with the questions about the values in them.

    Args:
        codes: of the user's functions, the one with the loop among them.
        committed: names of what a commit holds or drives (model, optimizer, run): passing a value to them,
            or them to an unknown function, is training.
    """

    def __init__(self, codes: Iterable[types.CodeType], committed: Collection[str]) -> None:
        self._sources = Sources(codes)
        self._committed = frozenset(committed)
        nodes = self._sources.nodes
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        calculating = [node for node in imports if str(node.module).partition(".")[0] in CALCULATE]
        self._imported = {one.asname or one.name for node in calculating for one in node.names} - NAMES
        self._answers: dict[tuple[types.CodeType | None, str], bool] = {}
        self._known: dict[tuple[int, str, bool], bool] = {}
        self._steering: dict[str, frozenset[str]] = {}
        self._shared = False
        """True for a variable whose memory others read: what is written to it counts, too."""
        self._root: tuple[Scope | None, str] = (None, "")
        """The variable that was asked for: its object is known to reach nothing that is trained."""

    def is_shared_output(self, code: types.CodeType | None, name: str) -> bool:
        """Returns True if a variable flows only into output and nothing is written into its object."""
        self._shared, known, self._answers = True, self._answers, {}
        try:
            return self.variable(code, name)
        finally:
            self._shared, self._answers = False, known

    def variable(self, code: types.CodeType | None, name: str) -> bool:
        """Returns True if the variable flows only into output; False if that is not known.

        `code`: of the function whose variable it is; None: a global variable of any of the files.
        """
        if (code, name) not in self._answers:
            scopes = self._sources.trees if code is None else [self._sources.scope_of(code)]
            self._answers[code, name] = bool(scopes) and all(self._is_output_in(one, name) for one in scopes)
            if code is None and self._answers[code, name]:
                self._answers[code, name] = self._is_output_of_modules(name)
        return self._answers[code, name]

    def _is_output_of_modules(self, name: str) -> bool:
        """Returns True if a module's variable flows only into output as `cfg.n`, and under imported names."""
        imports = [node for node in self._sources.nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [one for node in imports for one in node.names]
        known = [(one.name, one.asname or one.name.partition(".")[0]) for one in names]
        modules, others = {short for _, short in known}, {short for full, short in known if full == name}
        read = [
            one
            for one in self._sources.nodes
            if isinstance(one, ast.Call | ast.Attribute)
            and (_text_of_getattr(one) == name or (_loads_attribute(one, name) and root_of(one) in modules))
        ]
        return all(self.variable(None, one) for one in others - {name}) and all(
            self._is_output(one, self._sources.scope_around(one), 0) for one in read
        )

    def _is_output_in(self, scope: Scope | None, name: str) -> bool:
        self._ask(scope, name)
        return scope is not None and self._variable(scope, name, 0)

    def attribute(self, name: str) -> bool:
        """Returns True if every attribute of this name flows only into output.

        A text of an object counts as output: `f"{self.sum}"`, `"{sum}".format(**self.__dict__)` in `__str__`.
        """
        self._ask(None, "")
        reflects = any(
            isinstance(one, ast.Attribute | ast.Name)
            and last_name(one) in REFLECTS
            and not _text_of_getattr(self._sources.parents[one])
            and getattr(self._sources.scope_around(one), "name", "") not in _TEXTS | _BY_NAME
            for one in self._sources.nodes
        )
        return bool(self._sources.trees) and not reflects and self._attribute(name, 0)

    def steering(self, name: str) -> frozenset[str]:
        """Returns the attributes of the objects of this name that flow into more than output."""
        if name not in self._steering:
            names = self._aliases(name)
            loads = [one for one in self._sources.nodes if isinstance(one, ast.Attribute)]
            loads = [one for one in loads if isinstance(one.ctx, ast.Load) and names & parts_of(one.value)]
            self._ask(None, "")
            self._steering[name] = frozenset(
                one.attr for one in loads if not self._is_output(one, self._sources.scope_around(one), 0)
            )
        return self._steering[name]

    def _aliases(self, name: str) -> set[str]:
        """Returns the names under which an object, or a part of it, is assigned or passed to functions."""
        names, waiting = set[str](), [name]
        while waiting:
            one = waiting.pop()
            if one not in names:
                names.add(one)
                waiting += self._given_to.get(one, ())
        return names

    @functools.cached_property
    def _given_to(self) -> dict[str, set[str]]:
        """The names that get a value when it is assigned or passed to functions, by the names in its text."""
        found: dict[str, set[str]] = {}
        for node in self._sources.nodes:
            if isinstance(node, ast.Assign):
                given = [(last_name(one), node.value) for one in node.targets]
            else:
                given = self._passed(node) if isinstance(node, ast.Call) else []
            for name, value in given:
                for part in parts_of(value) if name else ():
                    found.setdefault(part, set()).add(name)
        return found

    def _passed(self, call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
        """Yields the parameters of the user's functions that a call may call, each with its argument."""
        for function in self._sources.functions_of(call) or self._sources.makers_of(call):
            yield from ((str(one.arg), one.value) for one in call.keywords)
            yield from (
                (name, one) for one in call.args if (name := self._sources.parameter(function, call, one))
            )

    def _ask(self, scope: Scope | None, name: str) -> None:
        """Begins a question. Answers inside a cycle, and what the root excuses, hold for it alone."""
        self._root = scope, name
        self._known.clear()

    def methods_train(self, kind: str) -> bool:
        """Returns True if a method of the user's class of this name mentions what a commit holds."""
        kinds = [node for node in self._sources.nodes if isinstance(node, ast.ClassDef) and node.name == kind]
        return any(map(self._mentions_committed, kinds))

    def _variable(self, scope: Scope, name: str, depth: int) -> bool:
        key = (id(scope), name, False)
        if key not in self._known:
            self._known[key] = True  # a cycle: `total = total + x`
            self._known[key] = depth < _DEPTH and all(
                self._is_output(node, where, depth + 1) for node, where in self._sources.reads(scope, name)
            )
        return self._known[key]

    def _attribute(self, name: str, depth: int) -> bool:
        key = (0, name, True)
        if key not in self._known:
            self._known[key] = True
            nodes = [node for node in self._sources.nodes if isinstance(node, ast.Call | ast.Attribute)]
            loads = (node for node in nodes if _text_of_getattr(node) == name or _loads_attribute(node, name))
            self._known[key] = depth < _DEPTH and all(
                self._is_output(node, self._sources.scope_around(node), depth + 1) for node in loads
            )
        return self._known[key]

    def _is_output(self, node: ast.expr, scope: Scope, depth: int) -> bool:
        spend()
        above = self._sources.parents[node]
        if isinstance(above, ast.Expr):
            return True
        if isinstance(above, ast.Call):
            return self._is_output_of_call(node, above, scope, depth)
        if isinstance(above, ast.keyword):
            call = self._sources.parents[above]
            return isinstance(call, ast.Call) and self._is_output_of_call(above, call, scope, depth)
        if isinstance(above, ast.Attribute | ast.Subscript) and not isinstance(above.ctx, ast.Load):
            return not self._shared if above.value is node else self._store(above, scope, depth)
        if isinstance(above, ast.Lambda):
            return self._is_output(above, self._sources.scope_around(self._sources.parents[above]), depth)
        if isinstance(above, ast.Yield | ast.YieldFrom | ast.Await):
            return False
        if isinstance(above, ast.AugAssign) and isinstance(above.target, ast.Name):
            changed = self._may_be_committed(scope, above.target.id)  # `w += x` changes a tensor in place
            return not changed and self._store(above.target, scope, depth)
        if isinstance(above, ast.NamedExpr):
            return self._store(above.target, scope, depth) and self._is_output(above, scope, depth)
        if isinstance(above, ast.comprehension):
            whole = self._sources.parents[above]
            return isinstance(whole, ast.expr) and self._is_output(whole, scope, depth)
        if isinstance(above, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = above.targets if isinstance(above, ast.Assign) else [above.target]
            return all(self._store(target, scope, depth) for target in targets)
        if isinstance(above, ast.If):
            return self._only_outputs([*above.body, *above.orelse], scope, depth)
        if isinstance(above, ast.For):
            return self._store(above.target, scope, depth) and self._only_outputs(above.body, scope, depth)
        if isinstance(above, ast.Return):
            return self._is_output_of_function(scope, depth)
        if isinstance(above, ast.Delete | ast.Raise | ast.Assert):
            return isinstance(above, ast.Delete)
        return isinstance(above, ast.expr) and self._is_output(above, scope, depth)

    def _is_output_of_call(self, node: ast.AST, call: ast.Call, scope: Scope, depth: int) -> bool:
        name = called(call)
        if self._shared and node is call.func and name not in READS:
            return False
        if node is call.func:  # a method of the object: `meter.update(loss)`
            if name in FILLS and self._is_container(call, scope):
                return True  # it returns None
            return (
                (name not in TRAINS or (name == "step" and self._is_of_root(call, scope)))
                and (not name.endswith("_") or self._is_of_root(call, scope))
                and not self._given_committed(call)
                and self._are_quiet(call, depth)
                and (name in READS or not self._may_be_committed(scope, root_of(call.func)))
                and self._is_output(call, scope, depth)
            )
        if self._sources.functions_of(call):
            return self._is_output_of_argument(node, call, depth) and self._is_output(call, scope, depth)
        if name in OUTPUT or (name == "dump" and root_of(call.func) in {"json", "yaml"}):
            return True
        if self._is_arithmetic(call) or name in READS:
            return not isinstance(self._sources.parents[call], ast.Expr) and self._is_output(
                call, scope, depth
            )
        if name in COLLECTS and isinstance(call.func, ast.Attribute) and root_of(call.func) not in LIBRARIES:
            return self._fill(call.func.value, scope, depth) and self._is_output(call, scope, depth)
        return False

    def _is_arithmetic(self, call: ast.Call) -> bool:
        return is_arithmetic(call) or (isinstance(call.func, ast.Name) and call.func.id in self._imported)

    def _is_container(self, call: ast.Call, scope: Scope) -> bool:
        """Returns True if a method is called on a variable that is only made as a list, a dict or a set."""
        holder = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(holder, ast.Name):
            return False
        made = values_of(scope, holder.id) or [
            one for tree in self._sources.trees for one in values_of(tree, holder.id)
        ]
        return bool(made) and all(
            isinstance(one, ast.List | ast.Dict | ast.Set)
            or (isinstance(one, ast.Call) and called(one) in CONTAINERS)
            for one in made
            if not isinstance(one, ast.Constant)
        )

    def _is_of_root(self, call: ast.Call, scope: Scope) -> bool:
        holder = call.func.value if isinstance(call.func, ast.Attribute) else None
        return isinstance(holder, ast.Name) and (scope, holder.id) == self._root

    def is_memo(self, code: types.CodeType, name: str) -> bool:
        """Returns True for a dict that only `if key not in d: d[key] = f(key)` fills: alike everywhere."""
        scope = self._sources.scope_of(code)
        if scope is None:
            return False
        names = [one for one in walk(scope) if isinstance(one, ast.Name)]
        stored = {one.id for one in names if isinstance(one.ctx, ast.Store)}
        filled = False
        for node, _ in self._sources.reads(scope, name):
            above = self._sources.parents[node]
            if isinstance(above, ast.Compare) or (
                isinstance(above, ast.Subscript) and isinstance(above.ctx, ast.Load)
            ):
                continue
            assigned = self._sources.parents[above]
            around = self._sources.parents.get(assigned)
            if (
                not isinstance(above, ast.Subscript)
                or not isinstance(assigned, ast.Assign)
                or not isinstance(around, ast.If)
            ):
                return False
            asks = ast.unparse(around.test) == f"{ast.unparse(above.slice)} not in {name}"
            varying = names_in(assigned.value) & stored - names_in(above.slice)
            calls = (one for one in walk(assigned.value) if isinstance(one, ast.Call))
            only_reads = all(self._is_arithmetic(one) or called(one) in READS for one in calls)
            if not asks or varying or not only_reads:
                return False
            filled = True
        return filled

    def _is_output_of_argument(self, node: ast.AST, call: ast.Call, depth: int) -> bool:
        """Returns True if the user's functions of this name only output the parameter that gets the value."""
        if depth >= _DEPTH or not self._are_quiet(call, depth):
            return False
        for function in self._sources.functions_of(call):
            name = self._sources.parameter(function, call, node)
            if name is None or not self._variable(function, name, depth + 1):
                return False
        return True

    def _is_output_of_function(self, scope: Scope, depth: int) -> bool:
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) or depth >= _DEPTH:
            return False
        if scope.name in _TEXTS:
            return True
        key = (id(scope), "return", True)
        if key not in self._known:  # each caller's callers would be followed anew, at each level
            self._known[key] = True
            self._known[key] = self._are_outputs_of_calls(scope, depth)
        return self._known[key]

    def _are_outputs_of_calls(self, scope: ast.FunctionDef | ast.AsyncFunctionDef, depth: int) -> bool:
        decorated = {one.id for one in scope.decorator_list if isinstance(one, ast.Name)}
        if "property" in decorated:
            return self._attribute(scope.name, depth + 1)
        calls = self._sources.calls.get(scope.name, [])
        if scope.name == "forward" or any(_is_of_super(call) for call in calls):
            return False  # a library calls what overrides a method of its class
        return bool(calls) and all(
            self._is_output(call, self._sources.scope_around(call), depth + 1) for call in calls
        )

    def _store(self, target: ast.expr, scope: Scope, depth: int) -> bool:
        if isinstance(target, ast.Name):
            if target.id in self._committed:
                return False
            scopes = self._sources.trees if target.id in declared_outside(scope) else [scope]
            return all(self._variable(where, target.id, depth + 1) for where in scopes)
        if isinstance(target, ast.Tuple | ast.List):
            return all(self._store(one, scope, depth) for one in target.elts)
        if isinstance(target, ast.Starred):
            return self._store(target.value, scope, depth)
        return self._fill(target, scope, depth)

    def _fill(self, holder: ast.expr, scope: Scope, depth: int) -> bool:
        """Returns True if an object that gets the value (`x.n = v`, `x[k] = v`) flows only into output."""
        attributes, root = _attributes_in(holder), root_of(holder)
        while isinstance(scope, Function) and root not in names_of(scope):  # a variable of an outer scope
            scope = self._sources.scope_around(self._sources.parents[scope])
        is_trained = len(attributes) > 1 or not TRAINED.isdisjoint(attributes)
        if not root or is_trained or self._may_be_committed(scope, root):
            return False
        if attributes and self._is_read_by_package(holder, scope):
            return False
        if attributes:
            return self._attribute(attributes[0], depth + 1)
        return self._variable(scope, root, depth + 1)

    def _is_read_by_package(self, holder: ast.expr, scope: Scope) -> bool:
        """Returns True if methods of a package may read what is stored: `sampler.weights = w`."""
        while not isinstance(holder, ast.Attribute):
            holder = holder.value  # type: ignore[attr-defined]
        kinds = self._sources.classes_of(holder.value, scope)
        if kinds is not None:
            return any(one.endswith(FETCHERS) for one in kinds - self._sources.bases.keys() - PLAIN_BASES)
        made = [one for one in self._sources.made_as(holder.value, scope) if isinstance(one, ast.Call)]
        own = self._sources.functions.keys() | self._sources.bases.keys() | NAMESPACES
        if any(called(one) not in own and root_of(one.func) not in OUTPUT_MODULES for one in made):
            return True
        return not made and not any(_loads_attribute(one, holder.attr) for one in self._sources.nodes)

    def _may_be_committed(self, scope: Scope, name: str, depth: int = 0) -> bool:
        """Returns True if a variable may be part of a commit: `for group in optimizer.param_groups`."""
        if name in self._committed or depth > 5:
            return True
        if (scope, name) == self._root:
            return False
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) and name in parameters_of(scope):
            return not self._sources.is_self(name, scope)
        names = (one for made, _ in made_in(scope).get(name, ()) for one in names_in(made) - {name})
        return any(self._may_be_committed(scope, one, depth + 1) for one in names)

    def _only_outputs(self, body: Sequence[ast.stmt], scope: Scope, depth: int) -> bool:
        """Returns True if statements under a condition do nothing but output and arithmetic for it."""
        return depth < _DEPTH and all(self._statement(one, scope, depth + 1) for one in body)

    def _statement(self, node: ast.stmt, scope: Scope, depth: int) -> bool:
        if not all(self._changes_nothing(one, scope, depth) for one in _calls(node)):
            return False
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return all(self._store(target, scope, depth) for target in targets)
        if isinstance(node, ast.If | ast.For):
            made = not isinstance(node, ast.For) or self._store(node.target, scope, depth)
            return made and self._only_outputs([*node.body, *node.orelse], scope, depth)
        if isinstance(node, ast.With):
            return self._only_outputs(node.body, scope, depth)
        return isinstance(node, ast.Expr | ast.Pass | ast.Import | ast.ImportFrom)

    def _changes_nothing(self, call: ast.Call, scope: Scope, depth: int) -> bool:
        name = called(call)
        if self._sources.functions_of(call):
            return depth < _DEPTH and self._are_quiet(call, depth)
        if name in OUTPUT or name in READS or name in ITERATES or self._is_arithmetic(call):
            return name in OUTPUT or not isinstance(self._sources.parents[call], ast.Expr)
        base = call.func.value if isinstance(call.func, ast.Attribute) else None
        inner = isinstance(base, ast.Name | ast.Attribute | ast.Subscript) and not self._given_committed(call)
        if base is None or not inner or root_of(base) in LIBRARIES:
            return False
        return self._fill(base, scope, depth)  # `meter.reset()`, `history.append(x)`: its uses count

    def _are_quiet(self, call: ast.Call, depth: int) -> bool:
        """Returns True if the user's functions called here change only what is theirs; no draws, no errors.

        True if there is none: the methods of a package's object.
        """
        for function in self._sources.functions_of(call):
            key = (id(function), "", True)
            if key not in self._known:
                self._known[key] = True
                self._known[key] = depth < _DEPTH and all(
                    self._is_quiet(node, function, depth + 1) for node in walk(function)
                )
            if not self._known[key]:
                return False
        return True

    def _is_quiet(self, node: ast.AST, function: ast.FunctionDef, depth: int) -> bool:
        if isinstance(node, ast.Global | ast.Nonlocal | ast.Raise | ast.Yield | ast.YieldFrom | ast.Await):
            return False
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return self._is_quiet_store(node, function, depth)
        if not isinstance(node, ast.Call):
            return True
        if self._sources.functions_of(node):
            return self._are_quiet(node, depth)
        return called(node) in QUIET or self._is_arithmetic(node)

    def _is_quiet_store(self, node: ast.expr, function: ast.FunctionDef, depth: int) -> bool:
        """Returns True for a store into a part of the object itself, or into what flows only into output."""
        names = _attributes_in(node)
        own = self._sources.is_self(root_of(node), function)
        if len(names) <= own:
            return own or not self._may_be_committed(function, root_of(node))
        others = TRAINED.isdisjoint(names) and not self._is_read_by_package(node, function)
        return others and not self._mentions_committed(node) and self._attribute(names[0], depth + 1)

    def _given_committed(self, call: ast.Call) -> bool:
        """Returns True if a call gets an object of the run, or perhaps a part; numbers are no parts."""
        if called(call) in KEEPS and not self._sources.functions_of(call):
            return False  # what a container keeps has uses of its own
        given = [one.value if isinstance(one, ast.keyword) else one for one in (*call.args, *call.keywords)]
        return any(self._mentions_committed(one) for one in given if not is_number(one))

    def _mentions_committed(self, node: ast.AST) -> bool:
        return any(
            (isinstance(one, ast.Name) and one.id in self._committed and not self._is_bound(one))
            or (isinstance(one, ast.Attribute) and one.attr in self._committed)
            for one in walk(node)
        )

    def _is_bound(self, name: ast.Name) -> bool:
        """Returns True for a variable of a comprehension with the name of a saved object: `for m in x`."""
        node: ast.AST = name
        while isinstance(node := self._sources.parents[node], ast.expr | ast.comprehension):
            bound = [one for one in getattr(node, "generators", ()) if name.id in names_in(one.target)]
            if bound:
                return not any(self._mentions_committed(one.iter) for one in bound)
        return False


def _text_of_getattr(node: ast.AST) -> str:
    """Returns "n" of `getattr(x, "n", 0)`; empty for anything else."""
    if not isinstance(node, ast.Call) or called(node) != "getattr" or len(node.args) < 2:
        return ""
    return str(node.args[1].value) if isinstance(node.args[1], ast.Constant) else ""


def _attributes_in(node: ast.expr) -> list[str]:
    """Returns ["n", "data"] for `self.data[0].n`."""
    names = []
    while isinstance(node, ast.Attribute | ast.Subscript):
        names += [node.attr] if isinstance(node, ast.Attribute) else []
        node = node.value
    return names


def _is_of_super(call: ast.Call) -> bool:
    base = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(base, ast.Call) and called(base) == "super"


def _loads_attribute(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Load)


def _calls(node: ast.stmt) -> Iterator[ast.Call]:
    """Yields the calls of a statement, without those of the statements inside it."""
    waiting: list[ast.AST] = [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.stmt)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, ast.Call):
            yield one
        waiting.extend(ast.iter_child_nodes(one))
