"""The values of options and of SCRIPT: read by the command, so that an error says in plain words what is taken."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence

import typer

from samebits.errors import InvalidArgumentError


def whole_number(example: int, *, least: int | None = None) -> Callable[[str], int]:
    """Returns the `parser` of an option that takes a whole number.

    Args:
        example: a value for the error.
        least: the least value that is taken; None: any.
    """

    def whole_number(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or (least is not None and value < least):
            more = "" if least is None else f", {least} or more"
            raise typer.BadParameter(f"{text!r}: must be a whole number{more}, such as {example}.")
        return value

    return whole_number


def number_above(least: float, example: float, unit: str) -> Callable[[str], float]:
    """Returns the `parser` of an option that takes a finite number above `least`.

    Args:
        least: itself not taken.
        example: a value for the error.
        unit: of the number: "seconds".
    """

    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least < value < math.inf:
            raise typer.BadParameter(
                f"{text!r}: must be a number of {unit} above {least:g}, such as {example:g}."
            )
        return value

    return number


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Returns the `parser` of an option that takes one of `choices`."""

    def choice(text: str) -> str:
        if text not in choices:
            raise typer.BadParameter(f"{text!r}: choose from {', '.join(choices)}.")
        return text

    return choice


def check_script(script: str) -> None:
    """Checks SCRIPT before anything is started.

    Raises:
        InvalidArgumentError: it is a folder, or there is no such file.
    """
    if os.path.isdir(script):
        raise InvalidArgumentError(
            f"{script} is a folder. Name the script in it, such as {os.path.join(script, 'train.py')}."
        )
    if not os.path.isfile(script):
        raise InvalidArgumentError(f"there is no file {script}. Give the path of a Python script.")
