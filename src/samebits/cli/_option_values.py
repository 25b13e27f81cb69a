"""The values of options and of SCRIPT: read by the command, so that an error names the valid ones."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import typer

from samebits.errors import InvalidArgumentError

T = TypeVar("T")


def whole_number(example: int, *, least: int | None = None) -> Callable[[str], int]:
    """Returns the `parser` of an option that takes a whole number; `example`: a value for the error."""
    more = "" if least is None else f", {least} or more"
    wanted = f"must be a whole number{more}, such as {example}"
    return _parser(int, lambda value: least is None or value >= least, wanted)


def whole_numbers(example: str, *, least: int) -> Callable[[str], tuple[int, ...]]:
    """Returns the `parser` of an option that takes several different whole numbers, "1,2,3"."""

    def read(text: str) -> tuple[int, ...]:
        return tuple(map(int, text.split(",")))

    wanted = f"must be two or more different whole numbers, {least} or more, such as {example}"
    return _parser(read, lambda found: len({*found}) == len(found) > 1 and min(found) >= least, wanted)


def number_above(least: float, example: float, unit: str) -> Callable[[str], float]:
    """Returns the `parser` of an option that takes a finite number above `least`, of `unit`: "seconds"."""
    wanted = f"must be a number of {unit} above {least:g}, such as {example:g}"
    return _parser(float, lambda value: least < value < math.inf, wanted)


def one_of(choices: Sequence[str]) -> Callable[[str], str]:
    return _parser(str, lambda value: value in choices, f"choose from {', '.join(choices)}")


def _parser(convert: Callable[[str], T], fits: Callable[[T], bool], wanted: str) -> Callable[[str], T]:
    def parse(text: str) -> T:
        with suppress(ValueError):
            value = convert(text)
            if fits(value):
                return value
        raise typer.BadParameter(f"{text!r}: {wanted}.")

    return parse


def check_script(script: str) -> None:
    """Raises `InvalidArgumentError` unless SCRIPT is a file, before anything is started."""
    if os.path.isdir(script):
        raise InvalidArgumentError(
            f"{script} is a folder. Name the script in it, such as {os.path.join(script, 'train.py')}."
        )
    if not os.path.isfile(script):
        raise InvalidArgumentError(f"there is no file {script}. Give the path of a Python script.")
