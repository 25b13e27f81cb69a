"""The cadence of commits: when one is due. The bits are the same for any."""

from __future__ import annotations

import re
import time
from typing import Any

from samebits._arguments import require

_FIRST_GUESS = 0.03
"""Cost of a commit in seconds, assumed before one was measured."""
_DISK_SHARE = 0.25
"""Share of the time in which the writer process may be busy under a budget."""
_LEAST_SECONDS = 1.0
"""Time between two commits under a budget: starting a program again takes longer than what is lost."""
_PERCENT = re.compile(r"([0-9]*\.?[0-9]+)\s*%")
_SECONDS = re.compile(r"([0-9]*\.?[0-9]+)\s*s")

Save = str | int


def share_of(text: Any) -> float:
    """Returns the share that a text such as "3%" gives, above 0 and at most 1; 0 for anything else."""
    found = _PERCENT.fullmatch(text) if isinstance(text, str) else None
    share = float(found[1]) / 100 if found else 0.0
    return share if share <= 1 else 0.0


class Cadence:
    """The cadence of commits, by `Run(save=...)`.

    "3%": when its cost, as measured last, is at most that share of the time since the last one: what the
    training thread pays, and the processor time of the writer process; at most one in a second. An int: the
    number of steps from one to the next. "30s": after so much time. "explicit": never by itself.

    Raises:
        InvalidArgumentError: `save` is none of these.
    """

    def __init__(self, save: Save) -> None:
        self._share = self._seconds = 0.0
        self._steps = 0
        if type(save) is int and save >= 1:
            self._steps = save
        elif share := share_of(save):
            self._share = share
        elif isinstance(save, str) and (found := _SECONDS.fullmatch(save)) and float(found[1]) > 0:
            self._seconds = float(found[1])
        else:
            forms = (
                "give a share of the time ('3%', above 0%, at most 100%), a number of steps (100), seconds "
                "('30s'), or 'explicit' for run.commit() and loop ends only"
            )
            require(save == "explicit", "Run", forms, save=save)
        self._cost = _FIRST_GUESS
        self._ended = time.perf_counter()

    @property
    def by_itself(self) -> bool:
        """True if commits are due by themselves: not "explicit"."""
        return bool(self._share or self._seconds or self._steps)

    @property
    def one_at_a_time(self) -> bool:
        """True if a commit waits until the one before is durable: a budget allows one at a time."""
        return self._share > 0

    def requires(self, step: int) -> bool:
        """Returns True if the interval in steps requires a commit at the boundary before `step`."""
        return self._steps > 0 and step > 0 and step % self._steps == 0

    def due(self, step: int) -> bool:
        if self._steps:
            return self.requires(step)
        passed = time.perf_counter() - self._ended
        if self._share:
            return passed >= max(_LEAST_SECONDS, self._cost / self._share)
        return self._seconds > 0 and passed >= self._seconds

    def record_commit(self, seconds: float) -> None:
        """Notes the seconds that a commit has cost the training thread."""
        self._cost = seconds
        self._ended = time.perf_counter()

    def record_write(self, seconds: float, processor_seconds: float) -> None:
        """Notes the seconds that the writer process needed for it."""
        self._cost += max(processor_seconds, seconds * self._share / _DISK_SHARE)
