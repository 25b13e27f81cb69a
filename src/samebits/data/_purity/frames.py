"""One call of a Python function, read and not run: the effect of each instruction on what may be on the stack.

CPython 3.11 to 3.14. The instructions are gone through in their order, each with the stack of all that jump to it;
variables hold all that is stored in them anywhere. An instruction of no known meaning may leave on the stack all that
it took. The result does not depend on the order of the instructions: it over-approximates.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Protocol

from samebits.data._purity.abstract_values import (
    GIVEN,
    GLOBALS,
    NOTHING,
    Atom,
    Call,
    Captured,
    CellValue,
    ClosureValue,
    Made,
    MethodValue,
    Text,
    Value,
)
from samebits.data._purity.known_functions import GENERATORS, names

_PASSES = 6
_LEAVES = names(
    "RETURN_VALUE RETURN_CONST RAISE_VARARGS RERAISE JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT "
    "INTERPRETER_EXIT"
)
_NO_EFFECT = names(
    "RESUME NOP PRECALL CACHE MAKE_CELL COPY_FREE_VARS RETURN_GENERATOR EXTENDED_ARG CALL_INTRINSIC_1 LIST_TO_TUPLE "
    "DELETE_FAST SETUP_ANNOTATIONS NOT_TAKEN END_ASYNC_FOR GEN_START ASYNC_GEN_WRAP TO_BOOL"
)
_POP = names("POP_TOP POP_ITER POP_EXCEPT PRINT_EXPR END_FOR")
_AGGREGATES = {
    "BUILD_LIST": (list, False), "BUILD_TUPLE": (tuple, False), "BUILD_SET": (set, False), "BUILD_STRING": (str, False),
    "BUILD_SLICE": (slice, False), "BUILD_MAP": (dict, True), "BUILD_CONST_KEY_MAP": (dict, False)
}  # fmt: skip
"""The type that is made, and True for pairs of keys and values."""
_ADD = names("LIST_APPEND SET_ADD MAP_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE")
_ADD_ITEMS = names("LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE")
"""They add the items of their operand, not the operand."""


class _Host(Protocol):
    """Heap, globals and libraries around a frame (`Reading`)."""

    once: set[str]

    def called(self, callee: Value, call: Call) -> Value: ...
    def attribute(self, of: Value, name: str, line: int) -> Value: ...
    def item(self, of: Value, index: Value, line: int) -> Value: ...
    def inside(self, of: Value, line: int) -> Value: ...
    def holds(self, made: Value, more: Value) -> None: ...
    def changed(self, of: Value, how: str, line: int, part: str = "") -> None: ...
    def combined(self, left: Value, right: Value, *, writes_in_place: bool, line: int) -> Value: ...
    def entered(self, of: Value, line: int) -> Value: ...
    def stored(self, cell: CellValue, line: int) -> None: ...
    def stored_global(self, name: str, line: int) -> None: ...
    def named_global(self, name: str, line: int) -> Value: ...
    def imported(self, name: str) -> Value: ...


class Frame:
    """A call: its variables, and what it returns or yields."""

    def __init__(
        self,
        code: CodeType,
        variables: dict[str, Value],
        around: dict[str, CellValue],
        host: _Host,
        namespace: tuple[dict[str, Any], str],
    ) -> None:
        self.code, self.host, self.namespace = code, host, namespace
        self.variables = dict(variables)
        self.cells = {name: CellValue(name, set(variables.get(name, ()))) for name in code.co_cellvars}
        self.cells |= {name: around.get(name, CellValue(name)) for name in code.co_freevars}
        self.returned: set[Atom] = set()
        self.line = code.co_firstlineno
        self._named: tuple[str, ...] = ()
        self._popped: Value = NOTHING
        self._guarded: list[tuple[str, int, list[str]]] = []

    def read(self) -> Value:
        """Goes through the code until nothing new comes up; what the call returns, or its generator yields."""
        instructions = list(dis.get_instructions(self.code))
        self._guarded = list(_guarded(instructions))
        before = -1
        for _ in range(_PASSES):
            self._pass(instructions)
            size = self._size()
            if size == before:
                break
            before = size
        return frozenset(self.returned)

    def _size(self) -> int:
        held = sum(len(v) for v in self.variables.values()) + sum(len(c.holds) for c in self.cells.values())
        return held + len(self.returned)

    def _pass(self, instructions: list[dis.Instruction]) -> None:
        entry: dict[int, list[Value]] = {
            one.target: [NOTHING] * (one.depth + 1 + one.lasti)
            for one in dis._parse_exception_table(self.code)  # type: ignore[attr-defined]
        }
        stack: list[Value] | None = []
        for one in instructions:
            if one.offset in entry:
                stack = _joined(stack, entry[one.offset])
            self.line = getattr(one, "line_number", one.starts_line) or self.line
            if stack is None:
                continue  # nothing comes here but by a jump back, which has its own entry in the next pass
            self._step(one, stack)
            if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
                target = self._at_target(one, stack)
                entry[one.argval] = _joined(entry.get(one.argval), target)
            if one.opname in _LEAVES:
                stack = None

    def _at_target(self, one: dis.Instruction, stack: list[Value]) -> list[Value]:
        """The stack where the jump goes: `_step` has left it as it is without the jump."""
        if one.opname == "FOR_ITER":  # 3.12 keeps the iterator for END_FOR
            return stack[:-2] if not _END_FOR_POPS else stack
        if one.opname.endswith("_OR_POP"):
            return [*stack, self._popped]
        if one.opname == "SEND":
            return stack[:-1] if not _END_FOR_POPS else stack
        return list(stack)

    def _step(self, one: dis.Instruction, stack: list[Value]) -> None:
        name = one.opname
        handler = _HANDLERS.get(name)
        if name.startswith("LOAD_FAST"):
            self._load_variables(one, stack)
        elif name in _POP or name.startswith("POP_JUMP"):
            _pop(stack, 2 if name == "END_FOR" and _END_FOR_POPS == 2 else 1)
        elif name in _AGGREGATES:
            self._aggregate(one, stack)
        elif name in _ADD:
            self._add(one, stack)
        elif name.startswith(("UNARY_", "FORMAT_", "CONVERT_")):
            has_format = name == "FORMAT_WITH_SPEC" or (name == "FORMAT_VALUE" and (one.arg or 0) & 4)
            _pop(stack, 2 if has_format else 1)
            stack.append(NOTHING)
        elif handler is not None:
            handler(self, one, stack)
        elif name.endswith("_OR_POP"):
            (self._popped,) = _pop(stack, 1)
        elif name in ("RERAISE", "RAISE_VARARGS"):
            _pop(stack, min(one.arg or 0, len(stack)))
        elif name not in _NO_EFFECT and name not in _LEAVES and not name.startswith("JUMP"):
            self._unknown(one, stack)

    def _unknown(self, one: dis.Instruction, stack: list[Value]) -> None:
        """By its net effect: takes and leaves as many as it may."""
        net = dis.stack_effect(one.opcode, one.arg if one.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        operands = _pop(stack, max(1, 1 - net)) if stack else []
        mixed: Value = frozenset().union(*operands)
        stack.extend([mixed] * max(0, len(operands) + net))

    # Variables

    def _load_variables(self, one: dis.Instruction, stack: list[Value]) -> None:
        stack.extend(self._variable(variable) for variable in _names(one.argval))

    def _store_variables(self, one: dis.Instruction, stack: list[Value]) -> None:
        for variable in _names(one.argval):
            self._store(variable, _pop(stack, 1)[0])

    def _store_and_load(self, one: dis.Instruction, stack: list[Value]) -> None:
        first, second = one.argval
        self._store(first, _pop(stack, 1)[0])
        stack.append(self._variable(second))

    def _delete_cell(self, one: dis.Instruction, stack: list[Value]) -> None:
        if self.cells[one.argval].lasting:
            self.host.stored(self.cells[one.argval], self.line)

    def _load_global(self, one: dis.Instruction, stack: list[Value]) -> None:
        stack.append(self.host.named_global(one.argval, self.line))
        if one.opname == "LOAD_GLOBAL" and (one.arg or 0) & 1:
            stack.insert(len(stack) if _null_behind else -1, NOTHING)

    def _store_global(self, one: dis.Instruction, stack: list[Value]) -> None:
        if one.opname != "DELETE_GLOBAL":
            _pop(stack, 1)
        if self._initialises(one):
            self.host.once.add(one.argval)
        else:
            self.host.stored_global(one.argval, self.line)

    def _load_constant(self, one: dis.Instruction, stack: list[Value]) -> None:
        constant = one.argval
        texts = isinstance(constant, tuple) and constant and all(isinstance(part, str) for part in constant)
        stack.append(
            frozenset({Text(constant)}) if texts or isinstance(constant, str | CodeType) else NOTHING
        )

    def _nothing(self, one: dis.Instruction, stack: list[Value]) -> None:
        stack.append(NOTHING)

    # Attributes, items, operators

    def _load_attribute(self, one: dis.Instruction, stack: list[Value]) -> None:
        of = _pop(stack, 3 if one.opname == "LOAD_SUPER_ATTR" else 1)[-1]
        stack.append(self.host.attribute(of, one.argval, self.line))
        if one.opname == "LOAD_METHOD" or (_attribute_has_flag and (one.arg or 0) & 1):
            stack.append(NOTHING)

    def _store_attribute(self, one: dis.Instruction, stack: list[Value]) -> None:
        what, of = _pop(stack, 2)
        if self._initialises(one) or _are_generators(what):  # which are set for each call
            self.host.once.add(one.argval)
        else:
            self.host.changed(of, "attribute", self.line, one.argval)
        self.host.holds(of, what)

    def _delete_attribute(self, one: dis.Instruction, stack: list[Value]) -> None:
        self.host.changed(_pop(stack, 1)[0], "attribute", self.line, one.argval)

    def _load_item(self, one: dis.Instruction, stack: list[Value]) -> None:
        of, index = _pop(stack, 2)
        stack.append(self.host.item(of, index, self.line))

    def _load_slice(self, one: dis.Instruction, stack: list[Value]) -> None:
        of, _, _ = _pop(stack, 3)
        stack.append(self.host.item(of, self._made(one, slice), self.line))

    def _store_item(self, one: dis.Instruction, stack: list[Value]) -> None:
        what, of, *index = _pop(stack, 4 if one.opname == "STORE_SLICE" else 3)
        names = [str(atom.value) for atom in index[0] if isinstance(atom, Text)]
        if names and any(isinstance(atom, Captured) and atom.name == GLOBALS for atom in of):
            for name in names:
                self.host.stored_global(name, self.line)
        elif not _are_generators(what):
            self.host.changed(of, "item", self.line)
        self.host.holds(of, what)

    def _delete_item(self, one: dis.Instruction, stack: list[Value]) -> None:
        of, _ = _pop(stack, 2)
        self.host.changed(of, "item", self.line)

    def _operate(self, one: dis.Instruction, stack: list[Value]) -> None:
        if one.argrepr == "[]":  # 3.14 reads items by it
            self._load_item(one, stack)
            return
        left, right = _pop(stack, 2)
        stack.append(
            self.host.combined(left, right, writes_in_place=one.argrepr.endswith("="), line=self.line)
        )

    def _compare(self, one: dis.Instruction, stack: list[Value]) -> None:
        left, right = _pop(stack, 2)
        self.host.combined(left, right, writes_in_place=False, line=self.line)
        stack.append(NOTHING)

    # The stack itself, containers, loops

    def _copy(self, one: dis.Instruction, stack: list[Value]) -> None:
        stack.append(stack[-(one.arg or 1)] if len(stack) >= (one.arg or 1) else NOTHING)

    def _swap(self, one: dis.Instruction, stack: list[Value]) -> None:
        other = one.arg or 1
        if len(stack) >= other:
            stack[-1], stack[-other] = stack[-other], stack[-1]

    def _aggregate(self, one: dis.Instruction, stack: list[Value]) -> None:
        kind, twice = _AGGREGATES[one.opname]
        made = self._made(one, kind)
        extra = one.opname == "BUILD_CONST_KEY_MAP"
        for part in _pop(stack, (one.arg or 0) * (2 if twice else 1) + extra):
            self.host.holds(made, part)
        stack.append(made)

    def _add(self, one: dis.Instruction, stack: list[Value]) -> None:
        parts = _pop(stack, 2 if one.opname == "MAP_ADD" else 1)
        into = stack[-(one.arg or 1)] if len(stack) >= (one.arg or 1) else NOTHING
        for part in parts:
            self.host.holds(into, self.host.inside(part, self.line) if one.opname in _ADD_ITEMS else part)

    def _unpack(self, one: dis.Instruction, stack: list[Value]) -> None:
        part, arg = self.host.inside(_pop(stack, 1)[0], self.line), one.arg or 0
        if one.opname == "UNPACK_SEQUENCE":
            stack.extend([part] * arg)
            return
        rest = self._made(one, list)
        self.host.holds(rest, part)
        stack.extend([part | rest] * ((arg & 0xFF) + 1 + (arg >> 8)))

    def _iterate(self, one: dis.Instruction, stack: list[Value]) -> None:
        """GET_ITER leaves the iterable in place of its iterator; FOR_ITER puts the next element on top."""
        part = self.host.inside(stack[-1] if stack else NOTHING, self.line)
        if one.opname == "FOR_ITER":
            stack.append(part)

    def _send(self, one: dis.Instruction, stack: list[Value]) -> None:
        _pop(stack, 1)
        part = self.host.inside(stack[-1] if stack else NOTHING, self.line)
        self.returned |= part
        stack.append(part)

    def _yield(self, one: dis.Instruction, stack: list[Value]) -> None:
        self.returned |= _pop(stack, 1)[0]
        stack.append(GIVEN)  # what is sent

    def _return(self, one: dis.Instruction, stack: list[Value]) -> None:
        self.returned |= _pop(stack, 1)[0]

    def _enter(self, one: dis.Instruction, stack: list[Value]) -> None:
        entered = self.host.entered(_pop(stack, 1)[0], self.line)
        stack += [_EXIT, entered] if one.opname == "BEFORE_WITH" else [entered | _EXIT, NOTHING]

    def _import(self, one: dis.Instruction, stack: list[Value]) -> None:
        _pop(stack, 2)
        stack.append(self.host.imported(one.argval))

    def _import_from(self, one: dis.Instruction, stack: list[Value]) -> None:
        stack.append(self.host.attribute(stack[-1], one.argval, self.line))

    # Calls

    def _names_of_arguments(self, one: dis.Instruction, stack: list[Value]) -> None:
        self._named = self.code.co_consts[one.arg or 0]

    def _call(self, one: dis.Instruction, stack: list[Value]) -> None:
        names, self._named = self._named, ()
        if one.opname == "CALL_KW":
            names = next((atom.value for atom in _pop(stack, 1)[0] if isinstance(atom, Text)), ())
        arguments = _pop(stack, one.arg or 0)
        callee, first = self._callee(stack)
        plain = len(arguments) - len(names)
        named = dict(zip(names, arguments[plain:], strict=True))
        call = Call([*first, *arguments[:plain]], named, (id(self.code), one.offset), self.line)
        stack.append(self.host.called(callee, call))

    def _call_starred(self, one: dis.Instruction, stack: list[Value]) -> None:
        """`f(*arguments, **named)`: any of them may be any parameter."""
        by_name = _pop(stack, 1)[0] if (one.arg or 0) & 1 or _always_has_map else NOTHING
        several = self.host.inside(_pop(stack, 1)[0], self.line)
        callee, first = self._callee(stack)
        named = {"*": several, "**": self.host.inside(by_name, self.line)}
        call = Call([*first, several], named, (id(self.code), one.offset), self.line)
        stack.append(self.host.called(callee, call))

    def _callee(self, stack: list[Value]) -> tuple[Value, list[Value]]:
        """The callable below the arguments, and `self` where the stack has both: its order differs between Pythons."""
        one, other = _pop(stack, 2)
        return (one, [other]) if one and other else (one | other, [])

    def _make_function(self, one: dis.Instruction, stack: list[Value]) -> None:
        code = next((atom.value for atom in _pop(stack, 1)[0] if isinstance(atom, Text)), None)
        extra = [] if _null_behind else _pop(stack, ((one.arg or 0) & 15).bit_count())
        defaults: Value = frozenset().union(*(self.host.inside(part, self.line) for part in extra))
        stack.append(frozenset({ClosureValue(code, self, defaults)}) if code is not None else GIVEN)

    def _set_function_attribute(self, one: dis.Instruction, stack: list[Value]) -> None:
        more, functions = _pop(stack, 2)
        if (one.arg or 0) & 3:  # its defaults
            inside = self.host.inside(more, self.line)
            functions = frozenset(
                ClosureValue(f.code, f.frame, f.defaults | inside) if isinstance(f, ClosureValue) else f
                for f in functions
            )
        stack.append(functions)

    # What the above is made of

    def _initialises(self, one: dis.Instruction) -> bool:
        """Returns True if this sets only what was None, from captured objects alone: a file that is opened."""
        for name, offset, variables in self._guarded:
            if name == one.argval and offset == one.offset:
                return all(isinstance(a, Captured) for v in variables for a in self._variable(v) or GIVEN)
        return False

    def _made(self, one: dis.Instruction, kind: type | None) -> Value:
        return frozenset({Made((id(self.code), one.offset), kind)})

    def _variable(self, name: str) -> Value:
        if name in self.cells:
            return frozenset(self.cells[name].holds)
        return self.variables.get(name, NOTHING)

    def _store(self, name: str, what: Value) -> None:
        if name in self.cells:
            cell = self.cells[name]
            cell.holds |= what
            if cell.lasting:
                self.host.stored(cell, self.line)
        else:
            self.variables[name] = self.variables.get(name, NOTHING) | what


_TESTS = ("IF_NOT_NONE", "IF_TRUE")
_STORES = ("STORE_ATTR", "STORE_GLOBAL")
_EXIT: Value = frozenset({MethodValue(Made((0, 0), dict), "__exit__")})
"""The method that a `with` calls at its end: it is read where the block is entered."""
_END_FOR_POPS = {(3, 11): 0, (3, 12): 2}.get(sys.version_info[:2], 1)
"""Values that END_FOR pops; 0: Python 3.11 has no such instruction, and FOR_ITER pops the iterator. 3.13 does it in two steps."""
_null_behind = "CALL_KW" in dis.opmap
"""3.13 pushes NULL behind the callable, and gives functions their closure later."""
_attribute_has_flag = "LOAD_METHOD" not in dis.opmap or sys.version_info >= (3, 12)
_always_has_map = sys.version_info >= (3, 14)


def _guarded(instructions: list[dis.Instruction]) -> Iterator[tuple[str, int, list[str]]]:
    """(name, offset, local variables used) of what is set under `if name is None` (or `if not name`), and tested before.

    The last such place only: what is set twice is no initialisation.
    """
    for number, one in enumerate(instructions[1:], 1):
        tested = instructions[number - 1]
        if not (one.opname.endswith(_TESTS) and tested.opname in ("LOAD_ATTR", "LOAD_GLOBAL")):
            continue
        inside = [part for part in instructions[number:] if part.offset < one.argval]
        stores = [part for part in instructions if part.opname in _STORES and part.argval == tested.argval]
        if len(stores) == 1 and stores[0] in inside:
            variables = [
                v for part in inside if part.opname.startswith("LOAD_FAST") for v in _names(part.argval)
            ]
            variables += [part.argval for part in inside if part.opname in ("LOAD_DEREF", "LOAD_CLOSURE")]
            yield tested.argval, stores[0].offset, variables


def _are_generators(what: Value) -> bool:
    """Returns True if only new random generators may be stored."""
    kinds = [atom.kind if isinstance(atom, Made) else None for atom in what]
    return bool(kinds) and all(kind is not None and issubclass(kind, GENERATORS) for kind in kinds)


def _names(argval: Any) -> tuple[str, ...]:
    return argval if isinstance(argval, tuple) else (argval,)


def _joined(one: list[Value] | None, other: list[Value] | None) -> list[Value]:
    """Returns the possible stack where two paths of the code meet."""
    if one is None or other is None:
        return list(one if other is None else other)  # type: ignore[arg-type]
    size = min(len(one), len(other))
    return [a | b for a, b in zip(one[len(one) - size :], other[len(other) - size :], strict=True)]


def _pop(stack: list[Value], count: int) -> list[Value]:
    """The uppermost values, the last one last."""
    popped = stack[max(0, len(stack) - count) :] if count else []
    del stack[len(stack) - len(popped) :]
    return [NOTHING] * (count - len(popped)) + popped


_HANDLERS: dict[str, Callable[[Frame, dis.Instruction, list[Value]], None]] = {
    opname: handler
    for handler, opnames in (
        (Frame._nothing, "PUSH_NULL GET_LEN"),
        (Frame._load_variables, "LOAD_DEREF LOAD_CLASSDEREF LOAD_CLOSURE"),
        (Frame._store_variables, "STORE_FAST STORE_FAST_STORE_FAST STORE_FAST_MAYBE_NULL STORE_DEREF"),
        (Frame._store_and_load, "STORE_FAST_LOAD_FAST"),
        (Frame._delete_cell, "DELETE_DEREF"),
        (Frame._load_global, "LOAD_GLOBAL LOAD_NAME"),
        (Frame._store_global, "STORE_GLOBAL DELETE_GLOBAL STORE_NAME"),
        (Frame._load_constant, "LOAD_CONST LOAD_SMALL_INT LOAD_COMMON_CONSTANT LOAD_ASSERTION_ERROR"),
        (Frame._load_attribute, "LOAD_ATTR LOAD_METHOD LOAD_SUPER_ATTR"),
        (Frame._store_attribute, "STORE_ATTR"),
        (Frame._delete_attribute, "DELETE_ATTR"),
        (Frame._load_item, "BINARY_SUBSCR"),
        (Frame._load_slice, "BINARY_SLICE"),
        (Frame._store_item, "STORE_SUBSCR STORE_SLICE"),
        (Frame._delete_item, "DELETE_SUBSCR"),
        (Frame._operate, "BINARY_OP"),
        (Frame._compare, "COMPARE_OP IS_OP CONTAINS_OP"),
        (Frame._copy, "COPY"),
        (Frame._swap, "SWAP"),
        (Frame._unpack, "UNPACK_SEQUENCE UNPACK_EX"),
        (Frame._iterate, "GET_ITER GET_YIELD_FROM_ITER FOR_ITER"),
        (Frame._send, "SEND"),
        (Frame._yield, "YIELD_VALUE"),
        (Frame._return, "RETURN_VALUE"),
        (Frame._enter, "BEFORE_WITH LOAD_SPECIAL"),
        (Frame._import, "IMPORT_NAME"),
        (Frame._import_from, "IMPORT_FROM"),
        (Frame._names_of_arguments, "KW_NAMES"),
        (Frame._call, "CALL CALL_KW"),
        (Frame._call_starred, "CALL_FUNCTION_EX"),
        (Frame._make_function, "MAKE_FUNCTION"),
        (Frame._set_function_attribute, "SET_FUNCTION_ATTRIBUTE"),
    )
    for opname in opnames.split()
}
