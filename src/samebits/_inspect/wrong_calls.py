"""Calls that do not fit a function's signature: an error of ours with the line to type, in place of Python's TypeError."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

from samebits._inspect.user_code import calling_frame
from samebits.errors import InvalidCallError

P = ParamSpec("P")
T = TypeVar("T")


class WrongCall(NamedTuple):
    """A call that does not fit: its positional arguments (without `self`) and those with a name."""

    args: tuple[Any, ...]
    named: Mapping[str, Any]
    unknown: tuple[str, ...]
    """The names that the function does not have."""


def explain_wrong_calls(explain: Callable[[WrongCall], str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Returns a decorator: a call that does not fit the signature raises `InvalidCallError` with the text of `explain`.

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


def name_of_variable(value: Any) -> str | None:
    """Returns the name of a variable that holds this very object where the user's line is; None where none does."""
    frame = calling_frame()
    for variables in (frame.f_locals, frame.f_globals):
        for name, held in variables.items():
            if held is value and not name.startswith("_"):
                return name
    return None
