"""The coefficients of our functions, exact: a tuple for each name of `coefficients.json`, read at first use.

`tools/function_coefficients.py` writes the file. Each tuple of a polynomial begins with the constant's.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("coefficients.json")


@cache
def _tables() -> dict[str, tuple[Any, ...]]:
    return {name: _numbers(entry["values"]) for name, entry in json.loads(FILE.read_bytes()).items()}


def _numbers(values: list[Any]) -> tuple[Any, ...]:
    """Returns the float64 of hexadecimal texts, or rows of them."""
    return tuple(_numbers(value) if isinstance(value, list) else float.fromhex(value) for value in values)


def __getattr__(name: str) -> Any:
    if name in _tables():
        return _tables()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
