"""All cases by their names."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from lab.catalogue import elementwise, opinfo
from lab.catalogue.battery import BATTERY
from lab.catalogue.case import ReviewCase
from samebits.errors import InvalidArgumentError

_MADE: dict[str, Callable[[], tuple[ReviewCase, ...]]] = {
    "battery": lambda: BATTERY,
    "tails": elementwise.tail_cases,
    "sweep": opinfo.sweep_cases,
    "opinfo": opinfo.sample_cases,
}
SOURCES = tuple(_MADE)
"""`battery`: own cases; `tails`: elementwise ops where they could differ; `sweep`: OpInfo's ops at 200,003 elements and more; `opinfo`: OpInfo's samples."""


def cases(source: str) -> tuple[ReviewCase, ...]:
    """The cases of one source, in the order in which they are run."""
    return _MADE[source]()


def find(full_name: str) -> ReviewCase:
    """The case of that name."""
    for source in SOURCES:
        if (case := _by_name(source).get(full_name)) is not None:
            return case
    raise InvalidArgumentError(f"There is no case named {full_name!r}.")


@cache
def _by_name(source: str) -> dict[str, ReviewCase]:
    return {case.full_name: case for case in cases(source)}
