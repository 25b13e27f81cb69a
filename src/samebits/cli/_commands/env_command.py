"""`samebits env`: the environment that the bits depend on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from samebits import determinism
from samebits.cli import _json_output as json_output
from samebits.cli._error_messages import printable


def env(*, json_file: json_output.JsonFile = None) -> None:
    """Show what the bits depend on: versions, processor, threads, flags.

    It is the environment of this command. That of a training is in the JSON of `samebits verify`. On a
    terminal it is a table; into a file or a pipe it is JSON.

    Exit status: 0.

    Examples:
        samebits env
        samebits env --json environment.json

    Read more: docs/reference/versions.md
    """
    json_output.check_json_file(json_file)
    found = determinism.environment_fingerprint()
    if sys.stdout.isatty() and not json_output.is_standard_output(json_file):
        _show(found)
    else:
        json_output.write_json(json_output.STANDARD_OUTPUT, found)
    if not json_output.is_standard_output(json_file):
        json_output.write_json(json_file, found)


def _show(fingerprint: Mapping[str, Any]) -> None:
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
