"""The loops inside a loop's body, by what a variable that only they assign depends on: do they run at all?

`for micro_step in range(n): loss = ...`, and `loss` is read after it. The next iteration would read an old
`loss` only if `n` were 0. So liveness is asked twice: as if an inner loop may run no time, and as if each
runs at least once.

A `for` statement surely runs if its iterable, which follows from constants and the frame's variables, has
items. Known are `range` of integers, containers that the function takes no items out of, tensors and arrays,
loaders, children and parameters of modules, and `enumerate`, `zip`, `reversed`, `sorted` or `tqdm` of these.
Of a user's code only `__len__` of a loader's dataset is called.
"""

from __future__ import annotations

import builtins
import collections
import dis
import operator
from collections.abc import Callable, Iterable, Sequence
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from samebits._inspect import code_names
from samebits._program import bytecode
from samebits._program.bytecode import stored_names
from samebits._program.control_flow import UNKNOWN, ControlFlow, Edge


class InnerLoop(NamedTuple):
    """A loop of a body: a `for` statement with its FOR_ITER at `at`, or a `while` (`at` is None)."""

    at: int | None
    skips: frozenset[Edge]
    """The steps by which control passes the loop without an iteration."""
    repeats: frozenset[int]
    """The instructions that jump back to the FOR_ITER: after them the loop may end."""


def inner_loops(flow: ControlFlow) -> list[InnerLoop]:
    """Returns the loops that the flow's head is not in; no comprehensions inside the code (3.12)."""
    found, before = [], dict[int, list[int]]()
    for position, after in enumerate(flow.following):
        for one in after:
            before.setdefault(one, []).append(position)
    for at, item in enumerate(flow.instructions):
        if item.opname == "FOR_ITER" and at != flow.head and not saved_names(flow.instructions, at):
            end = flow.following[at][0]
            if not at < flow.head < end:
                begins = at
                while flow.instructions[begins - 1].opname == "EXTENDED_ARG":
                    begins -= 1
                repeats = [one for one in before.get(begins, ()) if one != begins - 1]
                found.append(InnerLoop(at, frozenset({(at, end)}), frozenset(repeats)))
    return found + _while_loops(flow)


def _while_loops(flow: ControlFlow) -> list[InnerLoop]:
    """Returns one entry per condition of a `while`, which stands before the loop and at its end."""
    conditions = [at for at, item in enumerate(flow.instructions) if "_IF_" in item.opname]
    entries = {at: twin for at in conditions for twin in flow.twins(at)[-1:] if twin > at}
    outside = {flow.head, *entries}
    found = []
    for at, twin in entries.items():
        cycle = flow.cycle(twin, outside)
        ends = {after for one in cycle for after in flow.following[one] if after not in cycle}
        skips = frozenset((at, after) for after in flow.following[at] if after in ends)
        if skips and len(flow.following[at]) > 1:
            found.append(InnerLoop(None, skips, frozenset()))
    return found


def saved_names(items: Sequence[dis.Instruction], at: int) -> list[str]:
    """Returns the variables of the comprehension with its FOR_ITER at `at`, if it is in the function (3.12).

    Their old values are put back after it. Empty for a `for` statement.
    """
    names = []
    for number in range(at - 1, -1, -1):  # up to the iterable of the comprehension
        item = items[number]
        if item.opname == "LOAD_FAST_AND_CLEAR":
            names.append(str(item.argval))
        elif not item.opname.startswith(("SWAP", "BUILD_", "COPY", "MAKE_CELL", "NOP")):
            break
    return names


_SOME: Any = object()
"""Marks an iterable that has items, whatever they are."""
_CONTAINERS = (list, dict, set, collections.deque)
_FIXED = (range, tuple, str, bytes, frozenset)
_VIEWS = frozenset({"items", "keys", "values"})
_OF_MODULES = frozenset(
    f"{named}{what}" for named in ("", "named_") for what in ("parameters", "modules", "children", "buffers")
)
_REMOVES = frozenset({"clear", "pop", "popleft", "popitem", "remove", "discard", "difference_update"})
_AS_LONG = (enumerate, reversed, sorted, list, tuple, set, frozenset, iter)
"""Functions whose result has items if their first argument has."""
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
}  # fmt: skip
_IGNORED = ("PUSH_NULL", "PRECALL", "KW_NAMES", "NOP", "RESUME", "EXTENDED_ARG", "NOT_TAKEN")


class _KnownMethod(NamedTuple):
    owner: Any
    name: str


def running_loops(loops: Iterable[InnerLoop], flow: ControlFlow, frame: FrameType) -> frozenset[InnerLoop]:
    """Returns those of the inner loops that run at least once when `frame` goes on."""
    reader = _Expressions(flow, frame)
    return frozenset(one for one in loops if one.at is not None and reader.has_items(one.at))


class _Expressions:
    """Computes the values of expressions in a frame; `UNKNOWN` for what it does not know."""

    def __init__(self, flow: ControlFlow, frame: FrameType) -> None:
        self._items = flow.instructions
        top = flow.head if flow.ring is None else flow.ring.top
        loop = self._items[top:]
        self._assigned = {name for item in loop for name in stored_names(item)}
        self._variables = (frame.f_locals, frame.f_globals, vars(builtins))
        self._set, self._removes = _writes(loop, frame.f_code)

    def has_items(self, for_iter: int) -> bool:
        begin = next((n for n in range(for_iter, 0, -1) if self._items[n].opname == "GET_ITER"), 0)
        if begin == 0 or for_iter - begin > 2:
            return False
        return self._is_filled(self._value(bytecode.expression_before(self._items, begin)))

    def _value(self, expression: Sequence[dis.Instruction]) -> Any:
        stack: list[Any] = []
        for item in expression:
            if item.opname in _IGNORED:
                continue
            if (item.is_jump_target and item is not expression[0]) or not self._step(item, stack, expression):
                return UNKNOWN
        return stack[-1] if len(stack) == 1 else UNKNOWN

    def _step(self, item: dis.Instruction, stack: list[Any], expression: Sequence[dis.Instruction]) -> bool:
        """Does the instruction on the stack of values; returns False for one that it does not know."""
        name, given = item.opname, item.arg or 0
        if name in {"LOAD_CONST", "LOAD_SMALL_INT"}:
            stack.append(item.argval)
        elif name in {"LOAD_ATTR", "LOAD_METHOD"} and stack:
            stack[-1] = self._attribute(stack[-1], str(item.argval))
        elif name.startswith(("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF")):
            names = item.argval if isinstance(item.argval, tuple) else (item.argval,)
            stack.extend(map(self._variable, names))
        elif name == "BINARY_OP" and len(stack) > 1:
            right, left = stack.pop(), stack.pop()
            stack.append(_binary(item.argrepr, left, right))
        elif name in {"BUILD_LIST", "BUILD_TUPLE", "BUILD_SET"} and len(stack) >= given:
            del stack[len(stack) - given :]
            stack.append(_SOME if given else UNKNOWN)
        elif name in {"CALL", "CALL_KW"}:
            named = stack.pop() if name == "CALL_KW" else _keywords(expression, item)
            if len(stack) <= given:
                return False
            values = [stack.pop() for _ in range(given)][::-1]
            positional = given - len(named)
            keywords = dict(zip(named, values[positional:], strict=True))
            stack[-1] = self._call(stack[-1], values[:positional], keywords)
        else:
            return False
        return True

    def _variable(self, name: str) -> Any:
        if name in self._assigned:
            return UNKNOWN
        return next((scope[name] for scope in self._variables if name in scope), UNKNOWN)

    def _attribute(self, value: Any, name: str) -> Any:
        """Returns an attribute that is stored in the object, or a method that is known; no user code runs."""
        if name in (_VIEWS if type(value) is dict else _OF_MODULES if _is_plain_module(value, name) else ()):
            return _KnownMethod(value, name)
        if isinstance(value, ModuleType):
            return vars(value).get(name, UNKNOWN)
        if value is UNKNOWN or value is _SOME or name in self._set:
            return UNKNOWN
        stored = _stored(value)
        if isinstance(value, torch.nn.Module):
            stored = {**stored.get("_modules", {}), **stored}
        return stored.get(name, UNKNOWN)

    def _call(self, function: Any, given: list[Any], named: dict[str, Any]) -> Any:
        if isinstance(function, _KnownMethod):
            return _SOME if self._is_filled_by(function) else UNKNOWN
        if function is range or _is_progress_bar(function, "trange"):
            return _range(given)
        if function is len and len(given) == 1:
            return _length(given[0])
        if function is int and len(given) == 1 and type(given[0]) is int:
            return given[0]
        several = function is zip
        if several or any(function is one for one in _AS_LONG) or _is_progress_bar(function, "tqdm", "track"):
            read = given if several else [*given, named.get("iterable", UNKNOWN)][:1]
            return _SOME if read and all(map(self._is_filled, read)) else UNKNOWN
        return UNKNOWN

    def _is_filled_by(self, method: _KnownMethod) -> bool:
        if method.name in _VIEWS:
            return self._is_filled(method.owner)
        return next(iter(getattr(method.owner, method.name)()), None) is not None

    def _is_filled(self, value: Any) -> bool:
        if value is _SOME:
            return True
        if type(value) in _CONTAINERS and self._removes:
            return False
        length = _length(value)
        return length is not UNKNOWN and length > 0


def _keywords(expression: Sequence[dis.Instruction], call: dis.Instruction) -> tuple[str, ...]:
    """Returns the names of a call's keyword arguments before Python 3.13: KW_NAMES stands shortly before."""
    at = next(number for number, item in enumerate(expression) if item is call)
    before = [item for item in expression[max(0, at - 2) : at] if item.opname == "KW_NAMES"]
    return before[-1].argval if before else ()


def _writes(items: Sequence[dis.Instruction], code: CodeType) -> tuple[frozenset[str], bool]:
    """Returns attributes that a loop, or a function in `code`, sets; True if it may remove items."""
    parts = [one for function in code_names.inner(code) for one in code_names.whole(function)]
    everything = [*items, *(item for one in parts for item in bytecode.instructions(one))]
    deletes = any(item.opname in {"DELETE_SUBSCR", "STORE_SLICE"} for item in everything)
    called = (item.argval for item in everything if item.opname.startswith(bytecode.ATTRIBUTES))
    removes = any(name in _REMOVES for name in called)
    attributes = frozenset(str(item.argval) for item in everything if item.opname == "STORE_ATTR")
    return attributes, deletes or removes


def _stored(value: Any) -> dict[str, Any]:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _is_plain_module(value: Any, name: str) -> bool:
    if not isinstance(value, torch.nn.Module) or name not in _OF_MODULES:
        return False
    names = (name, name.removeprefix("named_"), f"named_{name}", "_named_members")
    kind, base = type(value), torch.nn.Module
    return all(getattr(kind, one, None) is getattr(base, one, None) for one in names)


def _is_progress_bar(function: Any, *names: str) -> bool:
    module = str(getattr(function, "__module__", ""))
    return module.startswith(("tqdm", "rich.progress")) and getattr(function, "__name__", "").startswith(
        names
    )


def _binary(sign: str, left: Any, right: Any) -> Any:
    if type(left) is not int or type(right) is not int or sign not in _OPERATORS:
        return UNKNOWN
    try:
        return _OPERATORS[sign](left, right)
    except ZeroDivisionError:
        return UNKNOWN


def _range(given: list[Any]) -> Any:
    if not 1 <= len(given) <= 3 or any(type(one) is not int for one in given) or 0 in given[2:]:
        return UNKNOWN
    return range(*given)


def _length(value: Any) -> Any:
    """Returns the number of items of a value whose class is not a user's; else `UNKNOWN`."""
    if type(value) in (torch.Tensor, torch.nn.Parameter, np.ndarray):
        return value.shape[0] if len(value.shape) else UNKNOWN
    if isinstance(value, DataLoader):
        try:
            return len(value)
        except Exception:  # a dataset without a length, or of a user's with an error
            return UNKNOWN
    if type(value) in (*_FIXED, *_CONTAINERS, torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ModuleDict):
        return len(value)
    return UNKNOWN
