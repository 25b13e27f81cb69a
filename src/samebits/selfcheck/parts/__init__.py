"""The parts, in the order of their value: a GPU is available for minutes."""

from __future__ import annotations

from importlib import import_module

from samebits.errors import InvalidArgumentError
from samebits.selfcheck.case import Part

NAMES = ("random", "switch", "training", "compiled", "commits", "rounding", "arithmetic", "processes")
"""A part's name is that of its file."""


def part_named(name: str) -> Part:
    """Returns the part of that name, from its file; with a dot in it, the `PART` of a module of the user's."""
    if "." in name:
        return import_module(name).PART
    if name not in NAMES:
        raise InvalidArgumentError(
            f"--part {name!r}: the parts are {', '.join(NAMES)}, or a module of your own, `package.module`."
        )
    return import_module(f"{__name__}.{name}").PART
