"""`samebits env`: the environment that the bits depend on."""

from __future__ import annotations

import sys

from samebits import cli, determinism
from samebits.cli._json_output import (
    STANDARD_OUTPUT,
    JsonFile,
    check_json_file,
    is_standard_output,
    write_json,
)


def env(*, json_file: JsonFile = None) -> None:
    """Show what the bits depend on: versions, processor, threads, flags.

    It is the environment of this command. That of a training is in the JSON of `samebits verify`. On a
    terminal it is a table; into a file or a pipe it is JSON.

    Exit status: 0.

    Examples:
        samebits env
        samebits env --json environment.json

    Read more: docs/versions.md
    """
    check_json_file(json_file)
    found = determinism.environment_fingerprint()
    if sys.stdout.isatty() and not is_standard_output(json_file):
        cli._reports.env_report.show(found)
    else:
        write_json(STANDARD_OUTPUT, found)
    if not is_standard_output(json_file):
        write_json(json_file, found)
