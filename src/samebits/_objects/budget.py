"""The bound of what is read of a user's code and objects: steps that are counted, and a clock behind them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import thread_time
from typing import Self

from samebits._garbage_collection import without_garbage_collection

STEPS, SECONDS = 50_000, 0.2
"""Steps of one loader, pipeline or question: about 0.1 s. Seconds of the processor, where steps cost more."""
CHECK_STEPS, CHECK_SECONDS = 2_000_000, 20.0
"""The same of one check of a run: the largest program in this tree takes at most a fifth of the steps."""
_EACH = 256
"""Steps between two looks at the clock."""


class BudgetSpentError(Exception):
    """No steps are left: what is not read counts as the worst that it could be."""


class Budget:
    """The steps that all readers of one question share.

    Steps decide, so that a verdict does not change with the load of a machine. The clock, which counts this
    thread's time alone, is the last resort. A copy in another process begins anew.

    Example:
        >>> budget = Budget(steps=10)
        >>> with budget:
        ...     budget.spend(11)
        Traceback (most recent call last):
        ...
        samebits._objects.budget.BudgetSpentError: more code than is read
    """

    def __init__(self, steps: int = STEPS, seconds: float = SECONDS) -> None:
        self._given = steps, seconds
        self._left, self._next_look = steps, steps - _EACH
        self._seconds, self._began = seconds, 0.0

    def __reduce__(self) -> tuple[type[Self], tuple[int, float]]:
        return type(self), self._given

    def __enter__(self) -> Self:
        self._collector = without_garbage_collection()  # half of the time, with a large library imported
        self._collector.__enter__()
        self._began = thread_time()
        return self

    def __exit__(self, *exception: object) -> None:
        self._seconds -= thread_time() - self._began
        self._collector.__exit__(None, None, None)

    def spend(self, steps: int = 1) -> None:
        """Counts steps, of some microseconds each. Raises BudgetSpentError when none are left."""
        self._left -= steps
        if self._left < self._next_look:
            self._next_look = self._left - _EACH
            if thread_time() - self._began > self._seconds:
                self._left = -1
        if self._left < 0:
            raise BudgetSpentError("more code than is read")


_CHECK: ContextVar[Budget | None] = ContextVar("check", default=None)


@contextmanager
def one_check(steps: int = CHECK_STEPS) -> Iterator[None]:
    """Lets all that reads the program within this block, or in blocks inside it, share one budget.

    When it is spent the check ends with a warning: a verdict on half of a program would be a false alarm or a
    silent loss.
    """
    if _CHECK.get() is not None:
        yield
        return
    with Budget(steps, CHECK_SECONDS) as budget:
        token = _CHECK.set(budget)
        try:
            yield
        finally:
            _CHECK.reset(token)


def spend(steps: int = 1) -> None:
    """Counts steps of the check that goes on, if one does. Raises BudgetSpentError when none are left."""
    budget = _CHECK.get()
    if budget is not None:
        budget.spend(steps)
