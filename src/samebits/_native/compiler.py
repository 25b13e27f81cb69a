"""Compiles Python functions to LLVM: a small language of numbers, addresses, loops and branches.

A function is read from its source, and every part that it calls is written in place; a part may be called
with numbers, arrays, tuples, types and other parts. What is known while it is compiled (a constant, a branch
that it decides, a loop over a tuple) costs nothing later. Types follow Numba's rules: integers are computed
in 64 bits, unsigned if both are; float32 and an integer give float64; `np.uint32(x)` and its like convert.
`//` and `%` round down, as in Python, and divided by zero an integer is 0. Nothing is reordered or fused. An
index is not checked and is no negative one. A variable has one type in a region of the source (the body of
a loop or a branch); a region that gives it another type ends that variable.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import FunctionType
from typing import Any, NoReturn

import numpy as np
from llvmlite import ir

from samebits._native import llvm
from samebits._native.lazy_kernel import Instruction, Kernel, Part
from samebits._native.llvm import NUMBERS, Type, boolean, float64, int64
from samebits._native.operations import I1, I64, PLAIN, Array, Computed, LanguageError, Operations


class _Slot:
    """The memory of a variable, and the region of the source in which it got its type."""

    __slots__ = ("place", "region", "type")

    def __init__(self, kind: Type, place: Any, region: object) -> None:
        self.type, self.place, self.region = kind, place, region


class _Held:
    """A variable that is no number, and the region of the source in which it was assigned."""

    __slots__ = ("region", "value")

    def __init__(self, value: Any, region: object) -> None:
        self.value, self.region = value, region


class _SourceRegion:
    """A region of the source (the body of a loop or branch), the names read in it, and those it retyped."""

    def __init__(self, outer: _SourceRegion | None = None, *, repeats: bool = False) -> None:
        self.outer, self.repeats = outer, repeats
        self.read: set[str] = set()
        self.changed: set[str] = set()


class _Ended:
    """The binding of a name behind a region that gave it another type."""


def _region_of(binding: Any) -> object:
    """Returns the region in which a binding was made; None for a constant, and behind the end of a region."""
    while type(binding) is tuple and binding:
        binding = binding[0]
    return getattr(binding, "region", None)


class _Scope:
    """The call of one function: its names, and where a `return` goes."""

    def __init__(self, function: Any, names: dict[str, Any]) -> None:
        self.function, self.names = function, names
        self.node = _definition(function)
        self.assigned = _assignments(function.__code__)
        code = function.__code__
        self.cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self.result: Any = None
        self.end: Any = None
        self.loops: list[tuple[Any, Any]] = []
        self.region = _SourceRegion()


@cache
def _definitions(path: str) -> dict[int, ast.FunctionDef]:
    tree = ast.parse("".join(linecache.getlines(path)))
    found = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {min([node.lineno, *(one.lineno for one in node.decorator_list)]): node for node in found}


def _definition(function: Any) -> ast.FunctionDef:
    code = function.__code__
    return _definitions(code.co_filename)[code.co_firstlineno]


_counts: dict[Any, dict[str, int]] = {}


def _assignments(code: Any) -> dict[str, int]:
    """Returns how often a function assigns to each of its names."""
    if code not in _counts:
        count: dict[str, int] = {}
        for node in ast.walk(_definitions(code.co_filename)[code.co_firstlineno]):
            names = [node] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else []
            names += [node.target] if isinstance(node, ast.AugAssign) else []
            for one in names:
                if isinstance(one, ast.Name):
                    count[one.id] = count.get(one.id, 0) + 1
        _counts[code] = count
    return _counts[code]


_BINARY: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", operator.add), ast.Sub: ("sub", operator.sub), ast.Mult: ("mul", operator.mul),
    ast.Div: ("div", operator.truediv), ast.FloorDiv: ("floordiv", operator.floordiv),
    ast.Mod: ("mod", operator.mod),
    ast.Pow: ("pow", operator.pow),
    ast.LShift: ("shl", operator.lshift), ast.RShift: ("shr", operator.rshift),
    ast.BitAnd: ("and_", operator.and_), ast.BitOr: ("or_", operator.or_), ast.BitXor: ("xor", operator.xor),
}  # fmt: skip
_COMPARISON: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", operator.lt), ast.LtE: ("<=", operator.le), ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge), ast.Eq: ("==", operator.eq), ast.NotEq: ("!=", operator.ne),
}  # fmt: skip


class Compiler(Operations):
    """Writes the code of functions where its builder stands."""

    def __init__(self, builder: Any) -> None:
        super().__init__(builder)
        self._scope: Any = None

    # --- functions ---

    def call(self, function: Any, arguments: Sequence[Any], named: dict[str, Any] | None = None) -> Any:
        """Writes a call in place, and returns its result."""
        known = _KNOWN.get(function) if isinstance(function, type) or callable(function) else None
        if named and known is None:
            self.fail(f"a call of {function!r} with arguments by name")
        if isinstance(function, Instruction):
            return self._instruction(function, arguments)
        if isinstance(function, Kernel):
            kinds = function.arguments
            given = [
                one if isinstance(one, Array) else self.cast(one, kind.element)
                for one, kind in zip(arguments, kinds, strict=True)
            ]
            return self._converted(self._inline(function.function, given), function.results)
        if isinstance(function, Part):
            return self._inline(function.function, arguments)
        if isinstance(function, type) and issubclass(function, np.generic):
            return self.cast(arguments[0], NUMBERS[np.dtype(function).name])
        if known is not None:
            return known(self, *arguments, **(named or {}))
        if isinstance(function, FunctionType):
            return self._inline(function, arguments)
        if not any(isinstance(one, Computed | Array) for one in arguments):
            return function(*arguments)
        return self.fail(f"a call of {function!r}")

    def _converted(self, result: Any, kinds: Sequence[Type]) -> Any:
        if not kinds:
            return None
        if isinstance(result, tuple):
            return tuple(self.cast(one, kind) for one, kind in zip(result, kinds, strict=True))
        return self.cast(result, kinds[0])

    def _instruction(self, one: Instruction, arguments: Sequence[Any]) -> Any:
        values = [self._decayed(argument) for argument in arguments]
        signature, write = one.build(*(value.type for value in values))
        given = [self.cast(value, kind).llvm for value, kind in zip(values, signature.args, strict=True)]
        result, kind = write(self.builder, *given), signature.return_type
        if kind.domain == "void":
            return None
        if kind.domain == "tuple":
            return kind.kind(*(Computed(int64, one) for one in result))
        return Computed(kind, result)

    def _decayed(self, x: Any) -> Computed:
        return Computed(llvm.pointer_to(x.element), x.place) if isinstance(x, Array) else self.value(x)

    def _inline(self, function: Any, arguments: Sequence[Any]) -> Any:
        outer, where, owned = self._scope, self.where, self.owned
        self.where, self.owned = f"{function.__module__}.{function.__qualname__}", []
        code = function.__code__
        parameters = code.co_varnames[: code.co_argcount]
        self._scope = scope = _Scope(function, {})
        for name, argument in zip(parameters, arguments, strict=True):
            if scope.assigned.get(name):
                scope.names[name] = self._bound(None, argument, name)
            else:
                scope.names[name] = argument
        body = scope.node.body
        early = sum(isinstance(node, ast.Return) for node in ast.walk(scope.node))
        last = body[-1]
        if early == int(isinstance(last, ast.Return)):
            self._block(body[:-1] if early else body)
            result = self._expression(last.value) if isinstance(last, ast.Return) and last.value else None
        else:
            scope.end = self.builder.append_basic_block("return")
            self._block(body)
            if not self.builder.block.is_terminated:
                self.builder.branch(scope.end)
            self.builder.position_at_end(scope.end)
            result = self._read(scope.result)
        for memory in self.owned:
            self.free(memory)
        self._scope, self.where, self.owned = outer, where, owned
        return result

    # --- names ---

    def _read(self, binding: Any) -> Any:
        if isinstance(binding, _Slot):
            return Computed(binding.type, self.builder.load(binding.place))
        if isinstance(binding, _Held):
            return binding.value
        if type(binding) is tuple:
            return tuple(self._read(one) for one in binding)
        return binding

    def _name(self, name: str) -> Any:
        scope = self._scope
        if name in scope.names:
            region, given = scope.region, _region_of(scope.names[name])
            while region is not None and region is not given:
                region.read.add(name)
                region = region.outer
            if isinstance(scope.names[name], _Ended):
                self.fail(f"{name} has two types, in a loop or a branch and before it: use two names")
            return self._read(scope.names[name])
        if name in scope.cells:
            return scope.cells[name].cell_contents
        if name in scope.function.__globals__:
            return scope.function.__globals__[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        return self.fail(f"the name {name} has no value here")

    def _assign_name(self, name: str, x: Any) -> None:
        scope = self._scope
        if scope.assigned.get(name, 0) == 1 and name not in scope.names and isinstance(x, PLAIN):
            scope.names[name] = x
        else:
            scope.names[name] = self._bound(scope.names.get(name), x, name)

    def _bound(self, before: Any, x: Any, name: str = "") -> Any:
        """Returns the binding of a variable that is given a value."""
        if type(x) is tuple:
            if type(before) is not tuple or len(before) != len(x):
                if before is not None:
                    self._retype(name, before, x)
                before = [None] * len(x)
            return tuple(self._bound(one, item, name) for one, item in zip(before, x, strict=True))
        region = self._scope.region
        if not isinstance(x, Computed | np.generic | int | float):
            if before is not None:
                self._retype(name, before, x)
            return _Held(x, region)
        x = self.value(x)
        if isinstance(before, _Slot) and (
            before.type is x.type or (before.region is not region and self._holds(before.type, x.type))
        ):
            self.builder.store(self.cast(x, before.type).llvm, before.place)
            return before
        if before is not None:
            self._retype(name, before, x.type)
        slot = _Slot(x.type, llvm.local(self.builder, x.type.llvm), region)
        self.builder.store(x.llvm, slot.place)
        return slot

    def _holds(self, kind: Type, other: Type) -> bool:
        try:
            return self.unified(kind, other) is kind
        except LanguageError:
            return False

    def _retype(self, name: str, before: Any, kind: Any) -> None:
        """Notes that a region gives a variable another type, which ends with the region."""
        region, given = self._scope.region, _region_of(before)
        while region is not None and region is not given:
            if region.repeats and name in region.read:
                was = getattr(before, "type", "another kind")
                self.fail(f"{name} is of {was} and is given {kind} in a loop: convert it, or use two names")
            region.changed.add(name)
            region = region.outer

    def _assign(self, target: ast.expr, x: Any) -> None:
        if isinstance(target, ast.Name):
            self._assign_name(target.id, x)
        elif isinstance(target, ast.Tuple):
            for one, item in zip(target.elts, x, strict=True):
                self._assign(one, item)
        elif isinstance(target, ast.Subscript):
            self.store(self._expression(target.value), self._expression(target.slice), x)
        else:
            self.fail(f"an assignment to {ast.unparse(target)}")

    # --- statements ---

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for one in statements:
            if self.builder.block.is_terminated:
                return
            getattr(self, f"_do_{type(one).__name__.lower()}", self._do_other)(one)

    def _do_other(self, node: ast.stmt) -> NoReturn:
        self.fail(f"line {node.lineno}: {ast.unparse(node).splitlines()[0]}")

    def _do_pass(self, node: ast.Pass) -> None: ...

    def _do_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._expression(node.value)

    def _do_assign(self, node: ast.Assign) -> None:
        x = self._expression(node.value)
        for target in node.targets:
            self._assign(target, x)

    def _do_augassign(self, node: ast.AugAssign) -> None:
        name, plain = _BINARY.get(type(node.op)) or self._do_other(node)
        if isinstance(node.target, ast.Name):
            self._assign_name(
                node.target.id,
                self.arithmetic(name, plain, self._name(node.target.id), self._expression(node.value)),
            )
        elif isinstance(node.target, ast.Subscript):
            holder, index = self._expression(node.target.value), self._expression(node.target.slice)
            self.store(
                holder,
                index,
                self.arithmetic(name, plain, self.item(holder, index), self._expression(node.value)),
            )

    def _do_return(self, node: ast.Return) -> None:
        scope = self._scope
        if node.value is not None:
            x = self._expression(node.value)
            region, scope.region = scope.region, _SourceRegion()
            before, scope.result = scope.result, self._bound(scope.result, x)
            scope.region = region
            if before is not None and before != scope.result:
                self.fail("it returns values of different types")
        self.builder.branch(scope.end)

    def _do_break(self, node: ast.Break) -> None:
        self.builder.branch(self._scope.loops[-1][1])

    def _do_continue(self, node: ast.Continue) -> None:
        self.builder.branch(self._scope.loops[-1][0])

    def _do_if(self, node: ast.If) -> None:
        condition = self._expression(node.test)
        if not isinstance(condition, Computed):
            self._block(node.body if condition else node.orelse)
            return
        builder = self.builder
        then, other, end = (builder.append_basic_block(name) for name in ("then", "else", "endif"))
        builder.cbranch(self.truth(condition), then, other)
        for block, statements in ((then, node.body), (other, node.orelse)):
            builder.position_at_end(block)
            with self._region():
                self._block(statements)
            if not builder.block.is_terminated:
                builder.branch(end)
        builder.position_at_end(end)

    @contextmanager
    def _region(self, *, repeats: bool = False) -> Iterator[None]:
        scope = self._scope
        scope.region = region = _SourceRegion(scope.region, repeats=repeats)
        yield
        scope.region = region.outer
        for name in region.changed:
            scope.names[name] = _Ended()

    def _do_while(self, node: ast.While) -> None:
        if node.orelse:
            self._do_other(node)
        builder = self.builder
        head, body, end = (builder.append_basic_block(name) for name in ("while", "do", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        self._scope.loops.append((head, end))
        with self._region(repeats=True):
            builder.cbranch(self.truth(self._expression(node.test)), body, end)
            builder.position_at_end(body)
            self._block(node.body)
        self._scope.loops.pop()
        if not builder.block.is_terminated:
            builder.branch(head)
        builder.position_at_end(end)

    def _do_for(self, node: ast.For) -> None:
        if node.orelse:
            self._do_other(node)
        over = node.iter
        if isinstance(over, ast.Call):
            function = self._expression(over.func)
            arguments = [self._expression(one) for one in over.args]
            if function is range:
                self._for_range(node, *arguments)
                return
            if function is np.ndindex:
                self._for_ndindex(node, arguments)
                return
        items = self._expression(over)
        if not isinstance(items, tuple):
            self.fail(f"line {node.lineno}: a loop over {items!r}")
        stored = (
            one for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        )
        names, given = self._scope.names, {one.id for one in stored}
        for item in items:
            for name in given & {*names}:
                if isinstance(names[name], PLAIN):  # a constant of the turn before
                    del names[name]
            self._assign(node.target, item)
            self._block(node.body)

    def _for_range(self, node: ast.For, *limits: Any) -> None:
        start, stop, step = (0, *limits, 1) if len(limits) == 1 else (*limits, 1)[:3]
        with self._counting(self.integer(start), self.integer(stop), self.integer(step)) as index:
            self._assign(node.target, Computed(int64, index))
            self._block(node.body)

    @contextmanager
    def _counting(self, start: Any, stop: Any, step: Any) -> Iterator[Any]:
        builder, before = self.builder, self.builder.block
        head, body, following, end = (
            builder.append_basic_block(name) for name in ("for", "body", "next", "end")
        )
        builder.branch(head)
        builder.position_at_end(head)
        index = builder.phi(I64)
        index.add_incoming(start, before)
        up, down = builder.icmp_signed("<", index, stop), builder.icmp_signed(">", index, stop)
        goes_up = builder.icmp_signed(">", step, I64(0))
        builder.cbranch(builder.select(goes_up, up, down), body, end)
        builder.position_at_end(body)
        self._scope.loops.append((following, end))
        with self._region(repeats=True):
            yield index
        self._scope.loops.pop()
        if not builder.block.is_terminated:
            builder.branch(following)
        builder.position_at_end(following)
        index.add_incoming(builder.add(index, step, flags=("nsw",)), following)
        builder.branch(head)
        builder.position_at_end(end)

    def _for_ndindex(self, node: ast.For, sizes: Sequence[Any], done: tuple[Any, ...] = ()) -> None:
        if len(done) == len(sizes):
            self._assign(node.target, done)
            self._block(node.body)
            return
        with self._counting(I64(0), self.integer(sizes[len(done)]), I64(1)) as index:
            self._for_ndindex(node, sizes, (*done, Computed(int64, index)))

    # --- expressions ---

    def _expression(self, node: ast.expr) -> Any:
        return getattr(self, f"_of_{type(node).__name__.lower()}", self._of_other)(node)

    def _of_other(self, node: ast.expr) -> NoReturn:
        self.fail(f"line {node.lineno}: {ast.unparse(node)}")

    def _of_constant(self, node: ast.Constant) -> Any:
        return node.value

    def _of_name(self, node: ast.Name) -> Any:
        return self._name(node.id)

    def _of_tuple(self, node: ast.Tuple) -> tuple[Any, ...]:
        return tuple(self._expression(one) for one in node.elts)

    def _of_slice(self, node: ast.Slice) -> slice:
        return slice(
            *(None if one is None else self._expression(one) for one in (node.lower, node.upper, node.step))
        )

    def _of_binop(self, node: ast.BinOp) -> Any:
        return self.arithmetic(
            *(_BINARY.get(type(node.op)) or self._of_other(node)),
            self._expression(node.left),
            self._expression(node.right),
        )

    def _of_unaryop(self, node: ast.UnaryOp) -> Any:
        x, is_not = self._expression(node.operand), isinstance(node.op, ast.Not)
        if not is_not and not isinstance(node.op, ast.USub):
            self._of_other(node)
        if isinstance(x, PLAIN):
            return not x if is_not else -x
        x = self.value(x)
        if is_not:
            return Computed(boolean, self.builder.not_(self.truth(x)))
        if x.type.domain in {"float", "vector"}:
            return Computed(x.type, self.builder.fneg(x.llvm))
        return self.binary("sub", np.uint64(0) if x.type.domain == "uint" else 0, x)

    def _of_compare(self, node: ast.Compare) -> Any:
        left, result = self._expression(node.left), None
        for sign, right in zip(node.ops, node.comparators, strict=True):
            name, plain = _COMPARISON.get(type(sign)) or self._of_other(node)
            other = self._expression(right)
            if isinstance(left, Computed | np.generic) or isinstance(other, Computed | np.generic):
                one: Any = self.compared(name, left, other)
            else:
                one = plain(left, other)
            result = one if result is None else self.arithmetic("and_", operator.and_, result, one)
            left = other
        return result

    def _of_boolop(self, node: ast.BoolOp) -> Any:
        result = self._expression(node.values[0])
        stops = isinstance(node.op, ast.Or)
        for other in node.values[1:]:
            if not isinstance(result, Computed):
                if bool(result) == stops:
                    return result
                result = self._expression(other)
                continue
            held, after = (
                self.truth(result),
                lambda other=other: Computed(boolean, self.truth(self._expression(other))),
            )
            known = lambda: Computed(boolean, I1(int(stops)))  # noqa: E731
            result = self._chosen(held, known, after) if stops else self._chosen(held, after, known)
        return result

    def _of_ifexp(self, node: ast.IfExp) -> Any:
        condition = self._expression(node.test)
        if not isinstance(condition, Computed):
            return self._expression(node.body if condition else node.orelse)
        return self._chosen(
            self.truth(condition), lambda: self._expression(node.body), lambda: self._expression(node.orelse)
        )

    def _chosen(self, condition: Any, chosen: Callable[[], Any], other: Callable[[], Any]) -> Any:
        builder = self.builder
        then, otherwise, end = (builder.append_basic_block(name) for name in ("if", "else", "chosen"))
        builder.cbranch(condition, then, otherwise)
        builder.position_at_end(then)
        a = chosen()
        then = builder.block
        builder.position_at_end(otherwise)
        b = other()
        otherwise = builder.block
        result = self._met(a, b, then, otherwise)
        for block in (then, otherwise):
            builder.position_at_end(block)
            builder.branch(end)
        builder.position_at_end(end)
        return self._phis(result, then, otherwise)

    def _met(self, a: Any, b: Any, then: Any, otherwise: Any) -> Any:
        """Returns pairs of values of one type, converted in the blocks where they come from."""
        if type(a) is tuple:
            return tuple(self._met(x, y, then, otherwise) for x, y in zip(a, b, strict=True))
        if not isinstance(a, Computed | np.generic | int | float):
            return a if a is b else self.fail("two branches give other things than numbers")
        kind = self.unified(self.value(a).type, self.value(b).type)
        self.builder.position_at_end(then)
        x = self.cast(a, kind)
        self.builder.position_at_end(otherwise)
        return [kind, x, self.cast(b, kind)]

    def _phis(self, result: Any, then: Any, otherwise: Any) -> Any:
        if type(result) is tuple:
            return tuple(self._phis(one, then, otherwise) for one in result)
        if not isinstance(result, list):
            return result
        kind, x, y = result
        merged = self.builder.phi(kind.llvm)
        merged.add_incoming(x.llvm, then)
        merged.add_incoming(y.llvm, otherwise)
        return Computed(kind, merged)

    def _of_attribute(self, node: ast.Attribute) -> Any:
        holder = self._expression(node.value)
        if not isinstance(holder, Array):
            return getattr(holder, node.attr)
        if node.attr == "shape":
            return holder.shape
        if node.attr == "size":
            return self.product(holder.shape)
        return self.fail(f"line {node.lineno}: {ast.unparse(node)}")

    def _of_subscript(self, node: ast.Subscript) -> Any:
        return self.item(self._expression(node.value), self._expression(node.slice))

    def _of_call(self, node: ast.Call) -> Any:
        function = self._expression(node.func)
        named = {one.arg: self._expression(one.value) for one in node.keywords if one.arg}
        arguments: list[Any] = []
        for one in node.args:
            if isinstance(one, ast.Starred):
                arguments += self._expression(one.value)
            else:
                arguments.append(self._expression(one))
        return self.call(function, arguments, named)


def _intrinsic(compiler: Compiler, name: str, x: Any) -> Computed:
    x = compiler.value(x)
    x = x if x.type.domain == "float" else compiler.cast(x, float64)
    form = ir.FunctionType(x.type.llvm, [x.type.llvm])
    function = llvm.function(compiler.builder.module, form, f"llvm.{name}.f{x.type.bits}")
    return Computed(x.type, compiler.builder.call(function, [x.llvm]))


def _magnitude(compiler: Compiler, x: Any) -> Computed:
    return _intrinsic(compiler, "fabs", x)


def _length(compiler: Compiler, x: Any) -> Any:
    return x.shape[0] if isinstance(x, Array) else len(x)


def carray(address: Any, shape: Any) -> Any:
    """Returns, in a kernel, the elements at an address as an array."""
    raise TypeError("carray is for kernels")


def address_of(array: Any) -> Any:
    """Returns, in a kernel, where an array's elements begin."""
    raise TypeError("address_of is for kernels")


_KNOWN: dict[Any, Callable[..., Any]] = {
    min: lambda compiler, *numbers: compiler.extreme("<", *numbers),
    max: lambda compiler, *numbers: compiler.extreme(">", *numbers),
    len: _length,
    int: lambda compiler, x: x if isinstance(x, int) else compiler.cast(x, int64),
    float: lambda compiler, x: float(x) if isinstance(x, int | float) else compiler.cast(x, float64),
    bool: lambda compiler, x: bool(x) if not isinstance(x, Computed) else compiler.cast(x, boolean),
    math.sqrt: lambda compiler, x: _intrinsic(compiler, "sqrt", x),
    np.floor: lambda compiler, x: _intrinsic(compiler, "floor", x),
    np.isnan: lambda compiler, x: compiler.compared("!=", x, x),
    np.isinf: lambda compiler, x: compiler.compared("==", _magnitude(compiler, x), math.inf),
    np.empty: lambda compiler, shape, kind: compiler.room(shape, NUMBERS[np.dtype(kind).name]),
    np.zeros: lambda compiler, shape, kind: compiler.zeros(shape, NUMBERS[np.dtype(kind).name]),
    address_of: lambda compiler, x: Computed(int64, compiler.builder.ptrtoint(x.place, I64)),
    carray: lambda compiler, address, shape: compiler.array(address, shape),
}
