"""The statements that a program executes, with digests of what each has written.

A statement's line follows those of the ops and calls in it. A call of a user's function writes its
parameters, its end writes a value for the statement that called it; library code is passed over.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from samebits._inspect.user_code import is_user_type, outwards, owner_of_frame
from samebits._objects.hashes import CONSTANTS, PLAIN, leaf, plain
from samebits._objects.rng_states import GENERATORS, generators, of_generator
from samebits.audit._record.opened_files import record_opened_files
from samebits.audit._trace.op_tracer import Lines, flags
from samebits.audit._trace.statements import ATTRIBUTE, Statement, scoped, statements_of, value_of

_DEPTH, _MOST = 4, 2000
_LEAVES = (torch.Tensor, np.ndarray, np.generic, *CONSTANTS)
_LISTS, _DICTS, _SETS = (list, tuple, deque), (dict, defaultdict, OrderedDict, Counter), (set, frozenset)
_CONTAINERS = (*_LISTS, *_DICTS, *_SETS)
_KERNELS = "torch._inductor.output_code"
"""The module whose objects call compiled kernels."""
OPAQUE, SET = "~", "{"
"""Begin the hash of an object of which only the class is known, and of a set."""


@dataclass
class _FollowedFrame:
    """A frame that is followed."""

    number: int
    now: Statement | None = None
    """The statement that runs in it."""


class LineTracer:
    """Writes a line for each statement of the user's while it is on (`sys.settrace`, this thread)."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._calls: dict[FrameType, _FollowedFrame] = {}
        self._followed: dict[CodeType, bool] = {}
        self._known: dict[tuple[str, int], int] = {}
        self._generators: dict[str, bytes] = {}
        self._flags: dict[str, Any] = {}
        self._count = 0
        self._on = False
        self._read: dict[str, None] = {}
        """Files opened since the last statement."""
        self._watch = ExitStack()
        self._compiled = False
        """True if compiled kernels ran since the last statement."""

    def start(self, frame: FrameType | None) -> None:
        """Begins with what runs in `frame` and around it, and writes the variables that these have."""
        self._generators = generators().by_name()
        begun = {name: state.hex() for name, state in self._generators.items()}
        held: dict[str, str] = {}
        seen: set[int] = set()
        for one in outwards(frame):
            if self._follows(one):
                call = self._calls[one] = _FollowedFrame(self._next())
                call.now = statements_of(one.f_code.co_filename).get(one.f_lineno)
                for name, value in one.f_locals.items():
                    held[scoped(name, one.f_code, call.number)] = marked(_inner_state(value))
                    _add_attributes(held, value, seen)
                one.f_trace = self._local
        self._flags = flags()
        self._lines.add(k="start", v=held, g=begun)
        self._on = True
        self._watch.enter_context(record_opened_files({}, self._read))
        sys.settrace(self._called)

    def stop(self) -> None:
        """Ends the trace; what runs goes on without it."""
        self._on = False
        self._watch.close()
        if sys.gettrace() == self._called:
            sys.settrace(None)
        for frame in self._calls:
            frame.f_trace = None
        self._calls.clear()

    def statement_of(self, frame: FrameType | None) -> list[int] | None:
        """Returns [statement, frame] of what runs in a frame, or around it in a comprehension; else None."""
        for one in outwards(frame):
            call = self._calls.get(one)
            if call is not None and call.now is not None:
                return [self._number(one.f_code.co_filename, call.now), call.number]
        return None

    def _next(self) -> int:
        self._count += 1
        return self._count

    def _follows(self, frame: FrameType) -> bool:
        code = frame.f_code
        if code not in self._followed:
            plain_code = not code.co_name.startswith("<") or code.co_name in ("<module>", "<lambda>")
            followed = plain_code and owner_of_frame(frame) == "user"
            self._followed[code] = followed and bool(statements_of(code.co_filename))
        return self._followed[code]

    def _number(self, file: str, statement: Statement) -> int:
        key = file, statement.first
        if key not in self._known:
            self._known[key] = len(self._known)
            self._lines.add(
                k="st", id=self._known[key], f=file, a=statement.first, b=statement.last, r=statement.reads
            )
        return self._known[key]

    def _called(self, frame: FrameType, event: str, _argument: Any) -> Any:
        return self._guarded(self._begin_call, frame, event)

    def _guarded(self, work: Callable[..., Any], *args: Any) -> Any:
        """Calls `work` outside of torch.compile, which would compile it, and of torch.func's transforms.

        The user's program goes on, whatever a value of its does when it is read.
        """
        compiler = set_eval_frame(None)
        try:
            with temporarily_clear_interpreter_stack():
                return work(*args)
        except Exception as error:
            self._lines.add(k="failed", why=repr(error))
            self.stop()
            return None
        finally:
            set_eval_frame(compiler)

    def _begin_call(self, frame: FrameType, event: str) -> Any:
        if event == "call" and frame.f_globals.get("__name__") == _KERNELS:
            self._compiled = True
        if not self._on or event != "call" or not self._follows(frame):
            return None
        if frame in self._calls:  # a generator goes on
            return self._local
        call = self._calls[frame] = _FollowedFrame(self._next())
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        given = [frame.f_locals.get(name) for name in names]
        written = {
            scoped(name, code, call.number): marked(value) for name, value in zip(names, given, strict=True)
        }
        more: dict[str, Any] = {"of": call.number}
        if code.co_name == "__getitem__" and isinstance(given[-1], int | str):
            more["element"] = given[-1]
        self._write("call", self._around(frame), written, frame, **more)
        return self._local

    def _local(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._guarded(self._go_on, frame, event, argument)

    def _go_on(self, frame: FrameType, event: str, argument: Any) -> Any:
        call = self._calls.get(frame)
        if not self._on or call is None:
            return None
        if event == "line":
            following = statements_of(frame.f_code.co_filename).get(frame.f_lineno)
            if following is not call.now or (following and frame.f_lineno == following.first):
                self._end_statement(frame, call)
                call.now = following
        elif event == "return":
            self._end_statement(frame, call, {"return": hash_of(argument).hex()})
            del self._calls[frame]
        return self._local

    def _end_statement(
        self, frame: FrameType, call: _FollowedFrame, returned: dict[str, str] | None = None
    ) -> None:
        if call.now is None:
            return
        variables, around, written = frame.f_locals, frame.f_globals, {}
        for path in call.now.writes:
            found, value = value_of(path, variables, around)
            if found and not isinstance(value, ModuleType):  # `torch.autograd` of `torch.autograd.grad(...)`
                key = scoped(path[0], frame.f_code, call.number)
                written[key] = marked(value) if len(path) == 1 else OPAQUE + hash_of(value).hex()
                if len(path) > 1:
                    written[ATTRIBUTE + path[-1]] = marked(value)
        if returned:
            caller = self._around(frame)
            key = "return" if caller is None else f"return of {caller[0]}:{caller[1]}"
            written[key] = returned["return"]
        self._write("line", [self._number(frame.f_code.co_filename, call.now), call.number], written, frame)

    def _around(self, frame: FrameType) -> list[int] | None:
        """Returns the statement that called: the nearest one of the user's."""
        return self.statement_of(frame.f_back)

    def _write(
        self,
        kind: str,
        statement: list[int] | None,
        written: dict[str, str],
        frame: FrameType,
        **more: int | str,
    ) -> None:
        line: dict[str, Any] = {"k": kind, "st": statement, "w": written, "fn": frame.f_code.co_name, **more}
        if self._compiled:
            line["compiled"], self._compiled = True, False
        if self._read:
            line["files"] = [*self._read]
            self._read.clear()
        now = generators().by_name()
        if now != self._generators:
            line["g"] = {name: state.hex() for name, state in now.items()}
            self._generators = now
        if (settings := flags()) != self._flags:
            self._flags = line["f"] = settings
        self._lines.add(**line)


def _inner_state(value: Any) -> Any:
    """Returns the values in an object of torch's that trains; another object as it is."""
    if isinstance(value, torch.nn.Module):
        return [*value.parameters(), *value.buffers()]
    if isinstance(value, torch.optim.Optimizer):
        groups = [
            {name: one for name, one in group.items() if name != "params"} for group in value.param_groups
        ]
        return [groups, *value.state.values()]
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler | torch.utils.data.Sampler):
        return vars(value)
    return value


def _add_attributes(held: dict[str, str], value: Any, seen: set[int], depth: int = _DEPTH) -> None:
    """Adds the attributes of the user's objects that a value holds; those of one name are one variable."""
    if not depth or id(value) in seen or isinstance(value, (*_LEAVES, ModuleType, FunctionType, type)):
        return
    seen.add(id(value))
    attributes = getattr(value, "__dict__", None)
    attributes = attributes if isinstance(attributes, dict) else {}
    inner = list(attributes.values())
    if isinstance(value, _CONTAINERS):
        inner += list(value.values() if isinstance(value, dict) else value)[:_MOST]
    for name, one in attributes.items() if is_user_type(type(value)) else ():
        key = ATTRIBUTE + name
        held[key] = plain([held.get(key, ""), hash_of(one).hex()]).hex()
    for one in inner:
        _add_attributes(held, one, seen, depth - 1)


def marked(value: Any) -> str:
    """Returns `hash_of` as text, behind `SET` or `OPAQUE`."""
    known = isinstance(value, (*_LEAVES, *_CONTAINERS, *GENERATORS)) or type(value) in PLAIN
    mark = "" if known else OPAQUE
    return (SET if isinstance(value, set | frozenset) else mark) + hash_of(value).hex()


def hash_of(value: Any, depth: int = _DEPTH) -> bytes:
    """Returns a hash of a value: of tensors, arrays and plain values in containers; of objects their class.

    Sets count without their order, as it shows where they are read.
    """
    kind = type(value)
    if isinstance(value, GENERATORS):
        return of_generator(value)
    if kind in PLAIN or isinstance(value, _LEAVES):
        try:
            return leaf(value)
        except Exception:  # a tensor without bytes that can be read
            return plain(kind.__qualname__)
    if depth and kind in (*_LISTS, *_DICTS) and len(value) <= _MOST:
        items = value.items() if kind in _DICTS else value
        return plain([kind.__name__, *(hash_of(one, depth - 1) for one in items)])
    if depth and kind in _SETS and len(value) <= _MOST:
        return plain(["set", *sorted(hash_of(one, depth - 1) for one in value)])
    return plain(f"{kind.__module__}.{kind.__qualname__}")
