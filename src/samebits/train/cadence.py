"""When to commit: a budget of time, never a matter of meaning; the bits are the same for any cadence."""

from __future__ import annotations

import time

_FIRST_GUESS = 0.03
"""Seconds a commit is taken to cost before one was measured."""


class Cadence:
    """A commit is due when its cost, as measured last, is at most `budget` of the time since the last one ended."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._cost = _FIRST_GUESS
        self._ended = time.perf_counter()

    def due(self) -> bool:
        """Whether the budget allows a commit now."""
        return self._cost <= self._budget * (time.perf_counter() - self._ended)

    def took(self, seconds: float) -> None:
        """Notes what a commit has cost, now that it is done."""
        self._cost = seconds
        self._ended = time.perf_counter()
