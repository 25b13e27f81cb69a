"""Checks of the arguments of public functions, with one text for their errors."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from numbers import Real
from typing import Any

from samebits.errors import InvalidArgumentError


def require(fits: bool, call: str, wanted: str, **argument: Any) -> None:
    """Raises `InvalidArgumentError` unless the one `argument` of `call` fits: `call(name=value): wanted.`"""
    if not fits:
        ((name, value),) = argument.items()
        raise InvalidArgumentError(f"{call}({name}={value!r:.60}): {wanted}.")


def require_int(call: str, least: int = 1, **argument: Any) -> None:
    """Raises unless the argument is an int of at least `least`."""
    (value,) = argument.values()
    require(is_int(value, least), call, f"must be an int of at least {least}", **argument)


def is_int(value: Any, least: int = 1) -> bool:
    """Returns True for an int of at least `least`; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: Any, least: float = -math.inf) -> bool:
    """Returns True for a real number of at least `least`; NaN and a bool are none."""
    return isinstance(value, Real) and not isinstance(value, bool) and float(value) >= least


def is_fraction(value: Any) -> bool:
    """Returns True for a number between 0 and 1, both left out."""
    return is_number(value) and 0 < value < 1


def can_be_called(function: Callable[..., Any], *given: Any, **named: Any) -> bool:
    """Returns True if a function takes these arguments, and for one in C that does not tell."""
    try:
        inspect.signature(function).bind(*given, **named)
    except TypeError:
        return False
    except ValueError:
        pass
    return True
