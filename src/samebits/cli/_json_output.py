"""`--json FILE` of every command; with `-`, standard output holds JSON alone."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from samebits.errors import InvalidArgumentError

STANDARD_OUTPUT = "-"

JsonFile = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Also write the result as JSON; - prints the JSON and nothing else."
    ),
]
"""The type of a command's parameter `json_file`; its default is None."""


def check_json_file(json_file: str | None) -> None:
    """Checks the value of `--json` before anything is done, as `check_file`."""
    if not is_standard_output(json_file):
        check_file("--json", json_file, "--json result.json, or --json -")


def check_file(option: str, file: str | None, example: str) -> None:
    """Raises `InvalidArgumentError` unless a file of results can be written, before anything is done."""
    if file is None:
        return
    folder = Path(file).absolute().parent
    if file in {"", STANDARD_OUTPUT} or Path(file).is_dir():
        raise InvalidArgumentError(f"{option} {file!r}: it is no file. Type {example}.")
    if not folder.is_dir():
        raise InvalidArgumentError(f"{option} {file}: there is no folder {folder}. Make it first.")
    if not os.access(file if Path(file).exists() else folder, os.W_OK):
        raise InvalidArgumentError(f"{option} {file}: it cannot be written. Choose another file.")


def is_standard_output(json_file: str | None) -> bool:
    """Returns True if standard output belongs to the JSON, so that no table may be printed there."""
    return json_file == STANDARD_OUTPUT


def output_kept_for(json_file: str | None) -> contextlib.AbstractContextManager[Any]:
    """Sends what is printed in the block to standard error if standard output belongs to the JSON."""
    has_json = is_standard_output(json_file)
    return contextlib.redirect_stdout(sys.stderr) if has_json else contextlib.nullcontext()


def write_json(json_file: str | None, content: Mapping[str, Any] | str) -> None:
    """Writes plain values, or ready JSON, to the file or to standard output, if `--json` is given."""
    if json_file is None:
        return
    text = content if isinstance(content, str) else json.dumps(content, indent=2)
    text = text.rstrip("\n") + "\n"
    if is_standard_output(json_file):
        sys.stdout.write(text)
    else:
        Path(json_file).write_text(text, encoding="utf-8")
