"""The environment for a person: a line for each value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from samebits.cli._printable import printable


def show(fingerprint: Mapping[str, Any]) -> None:
    """Prints names and values in two columns; the values of a group are indented below its name."""
    rows = list(_rows(fingerprint, ""))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(printable(f"{name.ljust(width)}  {value}".rstrip()))


def _rows(values: Mapping[str, Any], indent: str) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}", ""
            yield from _rows(value, f"{indent}  ")
        else:
            yield f"{indent}{name}", value if isinstance(value, str) else json.dumps(value)
