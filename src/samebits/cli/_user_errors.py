"""Errors of the user's code, for a command that can only exit with 2: the user's frames, and no frames of its callers."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from samebits._inspect.user_code import user_frames
from samebits.cli._printable import printable
from samebits.errors import SamebitsError


@contextmanager
def exit_on_user_error(what: str) -> Iterator[None]:
    """Ends the command with status 2 and a message if anything but an error of ours is raised, `sys.exit` included.

    Status 1 is an answer about the user's program and 0 a proof: neither may come from a program that did not run.
    """
    try:
        yield
    except (SamebitsError, typer.Exit):
        raise
    except (Exception, SystemExit) as error:
        print(printable(f"{_text(error)}samebits: {what}: {_last(error)}"), file=sys.stderr)
        raise typer.Exit(2) from None


def _text(error: BaseException) -> str:
    """Returns the frames of the user; all of them if there are none, since then the fault is ours (a file that does not parse has none)."""
    frames = traceback.extract_tb(error.__traceback__)
    own = user_frames(frames)
    return "".join(traceback.format_list(own or ([] if isinstance(error, SyntaxError) else frames)))


def _last(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()
