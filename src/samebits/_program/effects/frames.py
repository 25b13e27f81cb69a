"""One call of a Python function, read and not run: the effect of each instruction on the stack.

CPython 3.11 to 3.14. The instructions are gone through in their order, each with the stack of all that jump
to it; variables hold all that is stored in them anywhere. An instruction of no known meaning may leave on the
stack all that it took. The result does not depend on the order of the instructions: it over-approximates.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any

from samebits._inspect.words import words
from samebits._objects.rng_states import RESTORABLE
from samebits._program import bytecode
from samebits._program.effects.abstract_values import (
    GIVEN,
    GLOBALS,
    NOTHING,
    Atom,
    CallSite,
    Captured,
    CellValue,
    ClosureValue,
    Made,
    MethodValue,
    Text,
    Value,
)
from samebits._program.effects.lookups import Lookups

_PASSES = 6
_LEAVES = words(
    "RETURN_VALUE RETURN_CONST RAISE_VARARGS RERAISE JUMP_FORWARD JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT "
    "INTERPRETER_EXIT"
)
_NO_EFFECT = words(
    "RESUME NOP PRECALL CACHE MAKE_CELL COPY_FREE_VARS RETURN_GENERATOR EXTENDED_ARG CALL_INTRINSIC_1 "
    "LIST_TO_TUPLE DELETE_FAST SETUP_ANNOTATIONS NOT_TAKEN END_ASYNC_FOR GEN_START ASYNC_GEN_WRAP TO_BOOL"
)
_POP = words("POP_TOP POP_ITER POP_EXCEPT PRINT_EXPR END_FOR")
_AGGREGATES: dict[str, type] = {
    "BUILD_LIST": list, "BUILD_TUPLE": tuple, "BUILD_SET": set, "BUILD_STRING": str, "BUILD_SLICE": slice,
    "BUILD_MAP": dict, "BUILD_CONST_KEY_MAP": dict
}  # fmt: skip
_ADD_ITEMS = words("LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE")
"""They add the items of their operand, not the operand."""


class Frame:
    """A call: its variables, and what it returns or yields."""

    def __init__(
        self,
        code: CodeType,
        variables: dict[str, Value],
        around: dict[str, CellValue],
        host: Lookups,
        namespace: tuple[dict[str, Any], str],
    ) -> None:
        self.code, self.host, self.namespace = code, host, namespace
        self.variables = dict(variables)
        self.cells = {name: CellValue(name, set(variables.get(name, ()))) for name in code.co_cellvars}
        self.cells |= {name: around.get(name, CellValue(name)) for name in code.co_freevars}
        self.returned: set[Atom] = set()
        self.line = code.co_firstlineno
        self.stack: list[Value] = []
        self._named: tuple[str, ...] = ()
        self._popped: Value = NOTHING
        self._guarded: dict[int, list[str]] = {}

    def read(self) -> Value:
        """Reads the code until nothing new comes up; returns what a call returns or its generator yields."""
        self.host.budget.spend(len(self.code.co_code) // 8)  # most of it is inline caches
        instructions = bytecode.instructions(self.code)
        self._guarded = dict(_guarded(instructions))
        before = -1
        for _ in range(_PASSES):
            self._pass(instructions)
            size = self._size()
            if size == before:
                break
            before = size
        return frozenset(self.returned)

    def _size(self) -> int:
        self.host.budget.spend(len(self.variables) // 8)
        held = sum(len(v) for v in self.variables.values()) + sum(len(c.holds) for c in self.cells.values())
        return held + len(self.returned)

    def _pass(self, instructions: Sequence[dis.Instruction]) -> None:
        entry: dict[int, list[Value]] = {
            one.target: [NOTHING] * (one.depth + 1 + one.lasti)
            for one in dis._parse_exception_table(self.code)  # type: ignore[attr-defined]
        }
        reached: list[Value] | None = []
        for op in instructions:
            self.host.budget.spend(1 + len(self.stack) // 8)
            if op.offset in entry:
                reached = _joined(reached, entry[op.offset])
            self.line = getattr(op, "line_number", op.starts_line) or self.line
            if reached is None:
                continue  # nothing comes here but by a jump back, which has its own entry in the next pass
            self.stack = reached
            self._step(op)
            if op.opcode in dis.hasjrel or op.opcode in dis.hasjabs:
                entry[op.argval] = _joined(entry.get(op.argval), self._at_target(op))
            reached = None if op.opname in _LEAVES else self.stack

    def _at_target(self, op: dis.Instruction) -> list[Value]:
        """Returns the stack where the jump goes: `_step` has left it as it is without the jump."""
        if op.opname.endswith("_OR_POP"):
            return [*self.stack, self._popped]
        if _END_FOR_POPS:  # 3.12 keeps the iterator
            return list(self.stack)
        return self.stack[: len(self.stack) - {"FOR_ITER": 2, "SEND": 1}.get(op.opname, 0)]

    def _step(self, op: dis.Instruction) -> None:
        name = op.opname
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, op)
        elif name.startswith("LOAD_FAST"):
            self._load_variables(op)
        elif name in _POP or name.startswith("POP_JUMP"):
            self._pops(2 if name == "END_FOR" and _END_FOR_POPS == 2 else 1)
        elif name.startswith(("UNARY_", "FORMAT_", "CONVERT_")):
            has_format = name == "FORMAT_WITH_SPEC" or (name == "FORMAT_VALUE" and (op.arg or 0) & 4)
            self._pops(2 if has_format else 1)
            self.stack.append(NOTHING)
        elif name.endswith("_OR_POP"):
            self._popped = self._pop()
        elif name in ("RERAISE", "RAISE_VARARGS"):
            self._pops(min(op.arg or 0, len(self.stack)))
        elif name not in _NO_EFFECT and name not in _LEAVES and not name.startswith("JUMP"):
            self._unknown(op)

    def _unknown(self, op: dis.Instruction) -> None:
        """Takes and leaves as many as the net effect of an instruction of no known meaning may be."""
        net = dis.stack_effect(op.opcode, op.arg if op.opcode >= dis.HAVE_ARGUMENT else None, jump=False)
        operands = self._pops(max(1, 1 - net)) if self.stack else []
        mixed: Value = frozenset().union(*operands)
        self.stack.extend([mixed] * max(0, len(operands) + net))

    def _pops(self, count: int) -> list[Value]:
        """Takes the uppermost values off the stack, the last one last."""
        popped = self.stack[max(0, len(self.stack) - count) :] if count else []
        del self.stack[len(self.stack) - len(popped) :]
        return [NOTHING] * (count - len(popped)) + popped

    def _pop(self) -> Value:
        return self.stack.pop() if self.stack else NOTHING

    def _peek(self, place: int | None) -> Value:
        """Returns the value at this place from the top, which is 1."""
        return self.stack[-(place or 1)] if len(self.stack) >= (place or 1) else NOTHING

    # Variables

    def _load_variables(self, op: dis.Instruction) -> None:
        self.stack.extend(self._variable(name) for name in _names(op.argval))

    def _store_variables(self, op: dis.Instruction) -> None:
        for name in _names(op.argval):
            self._store(name, self._pop())

    def _store_and_load(self, op: dis.Instruction) -> None:
        first, second = op.argval
        self._store(first, self._pop())
        self.stack.append(self._variable(second))

    def _delete_cell(self, op: dis.Instruction) -> None:
        if self.cells[op.argval].lasting:
            self.host.stored(self.cells[op.argval], self.line)

    def _load_global(self, op: dis.Instruction) -> None:
        self.stack.append(self.host.named_global(op.argval))
        if op.opname == "LOAD_GLOBAL" and (op.arg or 0) & 1:
            self.stack.insert(len(self.stack) if _null_behind else -1, NOTHING)

    def _store_global(self, op: dis.Instruction) -> None:
        if op.opname != "DELETE_GLOBAL":
            self._pop()
        if self._initialises(op):
            self.host.once.add(op.argval)
        else:
            self.host.stored_global(op.argval, self.line)

    def _load_constant(self, op: dis.Instruction) -> None:
        constant = op.argval
        texts = isinstance(constant, tuple) and constant and all(isinstance(part, str) for part in constant)
        is_text = texts or isinstance(constant, str | CodeType)
        self.stack.append(frozenset({Text(constant)}) if is_text else NOTHING)

    def _nothing(self, op: dis.Instruction) -> None:
        self.stack.append(NOTHING)

    # Attributes, items, operators

    def _load_attribute(self, op: dis.Instruction) -> None:
        of = self._pops(3 if op.opname == "LOAD_SUPER_ATTR" else 1)[-1]
        self.stack.append(self.host.attribute(of, op.argval, self.line))
        if op.opname == "LOAD_METHOD" or (_attribute_has_flag and (op.arg or 0) & 1):
            self.stack.append(NOTHING)

    def _store_attribute(self, op: dis.Instruction) -> None:
        what, of = self._pops(2)
        if self._initialises(op) or _are_generators(what):  # which are set for each call
            self.host.once.add(op.argval)
        else:
            self.host.changed(of, "attribute", self.line, op.argval)
        self.host.holds(of, what)

    def _delete_attribute(self, op: dis.Instruction) -> None:
        self.host.changed(self._pop(), "attribute", self.line, op.argval)

    def _load_item(self, op: dis.Instruction) -> None:
        of, index = self._pops(2)
        self.stack.append(self.host.item(of, index, self.line))

    def _load_slice(self, op: dis.Instruction) -> None:
        of, _, _ = self._pops(3)
        self.stack.append(self.host.item(of, self._made(op, slice), self.line))

    def _store_item(self, op: dis.Instruction) -> None:
        what, of, *index = self._pops(4 if op.opname == "STORE_SLICE" else 3)
        names = [str(atom.value) for atom in index[0] if isinstance(atom, Text)]
        if names and any(isinstance(atom, Captured) and atom.name == GLOBALS for atom in of):
            for name in names:
                self.host.stored_global(name, self.line)
        elif not _are_generators(what):
            self.host.changed(of, "item", self.line)
        self.host.holds(of, what)

    def _delete_item(self, op: dis.Instruction) -> None:
        self.host.changed(self._pops(2)[0], "item", self.line)

    def _operate(self, op: dis.Instruction) -> None:
        if op.argrepr == "[]":  # 3.14 reads items by it
            self._load_item(op)
            return
        left, right = self._pops(2)
        in_place = op.argrepr.endswith("=") and op.opname == "BINARY_OP"
        result = self.host.combined(left, right, writes_in_place=in_place, line=self.line)
        self.stack.append(result if op.opname == "BINARY_OP" else NOTHING)

    # The stack itself, containers, loops

    def _copy(self, op: dis.Instruction) -> None:
        self.stack.append(self._peek(op.arg))

    def _swap(self, op: dis.Instruction) -> None:
        stack, other = self.stack, op.arg or 1
        if len(stack) >= other:
            stack[-1], stack[-other] = stack[-other], stack[-1]

    def _aggregate(self, op: dis.Instruction) -> None:
        made = self._made(op, _AGGREGATES[op.opname])
        count = op.arg or 0
        if op.opname == "BUILD_MAP":
            count *= 2
        elif op.opname == "BUILD_CONST_KEY_MAP":
            count += 1  # the keys
        for part in self._pops(count):
            self.host.holds(made, part)
        self.stack.append(made)

    def _add(self, op: dis.Instruction) -> None:
        parts = self._pops(2 if op.opname == "MAP_ADD" else 1)
        into = self._peek(op.arg)
        for part in parts:
            self.host.holds(into, self.host.inside(part, self.line) if op.opname in _ADD_ITEMS else part)

    def _unpack(self, op: dis.Instruction) -> None:
        part, arg = self.host.inside(self._pop(), self.line), op.arg or 0
        if op.opname == "UNPACK_SEQUENCE":
            self.stack.extend([part] * arg)
            return
        rest = self._made(op, list)
        self.host.holds(rest, part)
        self.stack.extend([part | rest] * ((arg & 0xFF) + 1 + (arg >> 8)))

    def _iterate(self, op: dis.Instruction) -> None:
        """GET_ITER leaves the iterable in place of its iterator; FOR_ITER puts the next element on top."""
        part = self.host.inside(self._peek(1), self.line)
        if op.opname == "FOR_ITER":
            self.stack.append(part)

    def _send(self, op: dis.Instruction) -> None:
        self._pop()
        part = self.host.inside(self._peek(1), self.line)
        self.returned |= part
        self.stack.append(part)

    def _yield(self, op: dis.Instruction) -> None:
        self.returned |= self._pop()
        self.stack.append(GIVEN)  # what is sent

    def _return(self, op: dis.Instruction) -> None:
        self.returned |= self._pop()

    def _enter(self, op: dis.Instruction) -> None:
        entered = self.host.entered(self._pop())
        self.stack += [_EXIT, entered] if op.opname == "BEFORE_WITH" else [entered | _EXIT, NOTHING]

    def _import(self, op: dis.Instruction) -> None:
        self._pops(2)
        self.stack.append(self.host.imported(op.argval))

    def _import_from(self, op: dis.Instruction) -> None:
        self.stack.append(self.host.attribute(self.stack[-1], op.argval, self.line))

    # Calls

    def _names_of_arguments(self, op: dis.Instruction) -> None:
        self._named = op.argval

    def _call(self, op: dis.Instruction) -> None:
        names, self._named = self._named, ()
        if op.opname == "CALL_KW":
            names = next((atom.value for atom in self._pop() if isinstance(atom, Text)), ())
        arguments = self._pops(op.arg or 0)
        plain = len(arguments) - len(names)
        self._call_callee(op, arguments[:plain], dict(zip(names, arguments[plain:], strict=True)))

    def _call_starred(self, op: dis.Instruction) -> None:
        """Calls `f(*arguments, **named)`: any of them may be any parameter."""
        by_name = self._pop() if (op.arg or 0) & 1 or _always_has_map else NOTHING
        several = self.host.inside(self._pop(), self.line)
        self._call_callee(op, [several], {"*": several, "**": self.host.inside(by_name, self.line)})

    def _call_callee(self, op: dis.Instruction, arguments: list[Value], named: dict[str, Value]) -> None:
        """Calls what is below the arguments, with `self` if both are there: Pythons differ in their order."""
        one, other = self._pops(2)
        callee, first = (one, [other]) if one and other else (one | other, [])
        call = CallSite([*first, *arguments], named, (id(self.code), op.offset), self.line)
        self.stack.append(self.host.called(callee, call))

    def _make_function(self, op: dis.Instruction) -> None:
        code = next((atom.value for atom in self._pop() if isinstance(atom, Text)), None)
        extra = [] if _null_behind else self._pops(((op.arg or 0) & 15).bit_count())
        defaults: Value = frozenset().union(*(self.host.inside(part, self.line) for part in extra))
        self.stack.append(frozenset({ClosureValue(code, self, defaults)}) if code is not None else GIVEN)

    def _set_function_attribute(self, op: dis.Instruction) -> None:
        more, functions = self._pops(2)
        if (op.arg or 0) & 3:  # its defaults
            inside = self.host.inside(more, self.line)
            functions = frozenset(
                ClosureValue(f.code, f.frame, f.defaults | inside) if isinstance(f, ClosureValue) else f
                for f in functions
            )
        self.stack.append(functions)

    # What the above is made of

    def _initialises(self, op: dis.Instruction) -> bool:
        """Returns True if this sets only what was None, from captured objects alone: an opened file."""
        used = self._guarded.get(op.offset)
        if used is None:
            return False
        return all(isinstance(a, Captured) for v in used for a in self._variable(v) or GIVEN)

    def _made(self, op: dis.Instruction, kind: type | None) -> Value:
        return frozenset({Made((id(self.code), op.offset), kind)})

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
"""Values that END_FOR pops; 0: Python 3.11 has none, and FOR_ITER pops the iterator. 3.13 takes two steps."""
_null_behind = "CALL_KW" in dis.opmap
"""3.13 pushes NULL behind the callable, and gives functions their closure later."""
_attribute_has_flag = "LOAD_METHOD" not in dis.opmap or sys.version_info >= (3, 12)
_always_has_map = sys.version_info >= (3, 14)


def _guarded(instructions: Sequence[dis.Instruction]) -> Iterator[tuple[int, list[str]]]:
    """(offset, local variables used) of what is set under `if name is None` (or `if not name`).

    The last such place only: what is set twice is no initialisation.
    """
    stores: dict[str, list[int]] = {}
    for part in instructions:
        if part.opname in _STORES:
            stores.setdefault(part.argval, []).append(part.offset)
    for number, one in enumerate(instructions[1:], 1):
        tested = instructions[number - 1]
        if not (one.opname.endswith(_TESTS) and tested.opname in ("LOAD_ATTR", "LOAD_GLOBAL")):
            continue
        stored = stores.get(tested.argval, [])
        if len(stored) == 1 and one.offset < stored[0] < one.argval:
            near = instructions[number : number + one.argval - one.offset]
            inside = [part for part in near if part.offset < one.argval]
            variables = [
                v for part in inside if part.opname.startswith("LOAD_FAST") for v in _names(part.argval)
            ]
            variables += [part.argval for part in inside if part.opname in ("LOAD_DEREF", "LOAD_CLOSURE")]
            yield stored[0], variables


def _are_generators(what: Value) -> bool:
    """Returns True if only new random generators may be stored."""
    kinds = [atom.kind if isinstance(atom, Made) else None for atom in what]
    return bool(kinds) and all(kind is not None and issubclass(kind, RESTORABLE) for kind in kinds)


def _names(argval: Any) -> tuple[str, ...]:
    return argval if isinstance(argval, tuple) else (argval,)


def _joined(one: list[Value] | None, other: list[Value] | None) -> list[Value]:
    """Returns the possible stack where two paths of the code meet."""
    if one is None or other is None:
        return list(one if other is None else other)  # type: ignore[arg-type]
    size = min(len(one), len(other))
    return [a | b for a, b in zip(one[len(one) - size :], other[len(other) - size :], strict=True)]


_HANDLERS: dict[str, Callable[[Frame, dis.Instruction], None]] = {
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
        (Frame._operate, "BINARY_OP COMPARE_OP IS_OP CONTAINS_OP"),
        (Frame._aggregate, " ".join(_AGGREGATES)),
        (Frame._add, "LIST_APPEND SET_ADD MAP_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE"),
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
