"""The call that a user typed: its text (`torch.randn(3)`), and an error where it does not fit."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
from collections.abc import Callable, Mapping
from itertools import islice
from types import FrameType, ModuleType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from samebits._inspect.user_code import calling_frame, calling_line, owner_of_frame
from samebits.errors import InvalidCallError

_LONGEST = 72


def call_of_frame(frame: FrameType) -> str:
    """Returns the text of the call that a frame is running, in backticks, cut to 72 characters, or "".

    What is typed at a prompt, or passed to `exec`, has none.
    """
    text = text_of_frame(frame)
    if not _is_whole(text):
        return ""  # the file was edited since it was imported: these are other columns
    if "\n" in text and (call := _parsed(text)):
        text = ast.unparse(call)  # on one line, without comments
    text = " ".join(text.split())
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return short and f"`{short}`"


def calling_op(op: str) -> str:
    """Returns the subject of a message about an op: "`torch.stft(x, 400)` at a.py:9 calls aten::_fft_r2c"."""
    frame, line = calling_frame(), calling_line()
    text = "" if owner_of_frame(frame) == "samebits" else call_of_frame(frame)
    return f"{text} at {line} calls {op}, which" if text else f"{op} at {line}"


def calling_function() -> str | None:
    """Returns torch's function that the user's line calls: "torch.stft", "Tensor.svd"; None if unclear."""
    frame = calling_frame()
    call = _parsed(text_of_frame(frame))
    if not isinstance(call, ast.Call):
        return None
    root, *rest = ast.unparse(call.func).split(".")
    name = ".".join([_name_of(frame.f_locals.get(root, frame.f_globals.get(root))), *rest])
    is_plain = all(part.isidentifier() for part in rest)  # not x.abs().svd()
    return name if is_plain and name.startswith(("torch.", "Tensor.")) else None


def text_of_frame(frame: FrameType) -> str:
    """Returns the source of the expression that a frame is running, else of its line, else ""."""
    code = frame.f_code
    position = next(islice(code.co_positions(), frame.f_lasti // 2, None), None)
    if position is None or None in position:
        return _line(frame, frame.f_lineno).strip()
    first, last, start, end = (int(number or 0) for number in position)
    lines = [_line(frame, number).encode() for number in range(first, last + 1)]
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][start:]
    return b"".join(lines).decode(errors="replace")


def _is_whole(text: str) -> bool:
    """Returns True for the text of an expression, a statement, or the first line of a block."""
    try:
        ast.parse(f"{text.strip()} pass" if text.rstrip().endswith(":") else text.strip())
    except SyntaxError:
        return False
    return True


def _parsed(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError:  # a line that is no expression, or a part of one
        return None


def _line(frame: FrameType, number: int) -> str:
    return linecache.getline(frame.f_code.co_filename, number, frame.f_globals)


def _name_of(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, torch.Tensor):
        return "Tensor"
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", "")
    return f"{module}.{name}" if isinstance(module, str) and name and callable(value) else ""


P = ParamSpec("P")
T = TypeVar("T")


class WrongCall(NamedTuple):
    """A call that does not fit: its positional arguments (without `self`) and those with a name."""

    args: tuple[Any, ...]
    named: Mapping[str, Any]
    unknown: tuple[str, ...]
    """The names that the function does not have."""


def explain_wrong_calls(explain: Callable[[WrongCall], str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Returns a decorator: calls unlike the signature raise `InvalidCallError` with `explain`'s text.

    `inspect.signature`, type checkers and editors see the function's own signature.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(function)
        is_method = next(iter(signature.parameters)) == "self"

        @functools.wraps(function)
        def call(*args: P.args, **named: P.kwargs) -> T:
            try:
                signature.bind(*args, **named)
            except TypeError:
                unknown = tuple(name for name in named if name not in signature.parameters)
                wrong = WrongCall(args[1:] if is_method else args, named, unknown)
                raise InvalidCallError(explain(wrong)) from None
            return function(*args, **named)

        return call

    return decorate


def texts_of_arguments(call: WrongCall) -> dict[int, str]:
    """Returns the text of each argument, by its identity: "model", "ema.opt"; empty if unclear."""
    typed = _parsed(text_of_frame(calling_frame()))
    if not isinstance(typed, ast.Call) or len(typed.args) != len(call.args):
        return {}
    given = {id(call.named[one.arg]): one.value for one in typed.keywords if one.arg in call.named}
    given |= {id(value): one for value, one in zip(call.args, typed.args, strict=True)}
    return {key: ast.unparse(one) for key, one in given.items() if not isinstance(one, ast.Starred)}
