"""The messages of a command that could not run: the fault is in the command line or the user's program."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from samebits._inspect.user_code import user_frames
from samebits.cli._help_pages import PROGRAM, first_example
from samebits.errors import SamebitsError

UsageError: type[Any] = typer.BadParameter.__mro__[1]
"""typer's base of all errors about a command line; typer has no public name for it."""

_RENAMED = {"--thread-invariant": ["--across threads"], "--machine-invariant": ["--across machines"]}
"""Options of older texts, and what they are called now."""


def sentence_of(error: Any, name: str, command: Any) -> str:
    """Returns what is wrong by a `UsageError`, and what to type; `command`: None for an unknown `name`."""
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return _no_such_option(error, name)
    if kind == "MissingParameter":
        return f"{_name_of(error.param)} is missing. {_example(command)}"
    if kind == "BadOptionUsage":
        return _bad_usage(error, command)
    if isinstance(error, typer.BadParameter) and error.param is not None:
        return f"{_name_of(error.param)} {error.message}"
    return error.format_message()


def _no_such_option(error: Any, name: str) -> str:
    near = _RENAMED.get(error.option_name) or sorted(error.possibilities or ())
    page = " ".join(filter(None, (PROGRAM, name, "-h")))
    advice = f"Did you mean {' or '.join(near)}?" if near else f"`{page}` lists the options."
    return f"there is no option {error.option_name}. {advice}"


def _bad_usage(error: Any, command: Any) -> str:
    option = next((one for one in getattr(command, "params", ()) if error.option_name in one.opts), None)
    if option is None:
        return error.format_message()
    name = error.option_name
    if option.is_flag:
        return f"{name} takes no value. Type {name} alone."
    return f"{name} needs a value. Type {name} {option.metavar}, as `{PROGRAM} {command.name} -h` explains."


def _example(command: Any) -> str:
    found = first_example(getattr(command, "help", None) or "")
    return f"Type for example: {found}" if found else f"`{PROGRAM} -h` lists all commands."


def _name_of(parameter: Any) -> str:
    """Returns the longest name of an option, or the word of an argument in the usage line."""
    options = [name for name in parameter.opts if re.match("-", name)]
    return max(options, key=len) if options else parameter.metavar


@contextmanager
def exit_on_user_error(what: str) -> Iterator[None]:
    """Ends the command with status 2 and a message for anything but an error of ours, `sys.exit` included.

    Status 1 is an answer about the user's program, 0 a proof: a program that did not run gives neither.
    """
    try:
        yield
    except (SamebitsError, typer.Exit):
        raise
    except (Exception, SystemExit) as error:
        last = "".join(traceback.format_exception_only(error)).strip()
        print(printable(f"{_text(error)}samebits: {what}: {last}"), file=sys.stderr)
        raise typer.Exit(2) from None


def _text(error: BaseException) -> str:
    """Returns the user's frames; all if there are none: the fault is ours, or a file does not parse."""
    frames = traceback.extract_tb(error.__traceback__)
    own = user_frames(frames)
    return "".join(traceback.format_list(own or ([] if isinstance(error, SyntaxError) else frames)))


def printable(text: str) -> str:
    """Returns `text` without characters that control a terminal: names in a commit may be anything."""
    return "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in text)
