"""Whether a function remembers what it drew: then the element that comes first in a process decides for all others there.

A call that made something remembered (see `keepers`) is repeated with the same element and the same generators. A memo of
what was computed changes nothing in that; a memo of a draw is not drawn again, so the generators end elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from samebits._context import Words
from samebits._inspect import rng_states
from samebits.data._calls import draw_scope
from samebits.data._calls.memories import Keeper, Numbers
from samebits.data._calls.reachable_memories import keepers
from samebits.data._purity import Finding
from samebits.data._rolling_digest import rolled

FIRST = 16
"""Calls that are looked at closely: a copy of the element is kept, and the first two that draw are repeated anyway."""
EACH, SOME = 64, 16
"""Of the calls after which something is remembered, so many are all repeated, and then one of so many."""
_PUT_BACK = ("attribute", "item", "closure variable set", "global variable set", "changed while it ran")
"""Side effects that keepers put back after a repetition; a file that was read on, or an iterator, they do not."""
_METHODS = ("append", "add", "update", "setdefault", "setattr", "extend", "__setitem__")


_Mark = tuple[list[int], list[int]]


class DrawRememberedError(Exception):
    """A function keeps what it drew: (where)."""


class Memos:
    """Of one function, in one process."""

    def __init__(
        self, function: Callable[..., Any], *, effects: list[Finding], repeatable: bool = True
    ) -> None:
        """`effects`: what a call is known to leave changed; `repeatable`: False where it must be called once only."""
        self._function = function
        self._keepers: list[Keeper] = keepers(function)
        self._effects = effects
        self._repeatable = repeatable and all(map(_is_put_back, effects))
        if effects and any(isinstance(one, Numbers) and one.large for one in self._keepers):
            self._repeatable = False
        self._calls = self._drew = self._kept = 0
        self._changes_elements = False
        self._last: _Mark | None = (
            None  # what others put there between two calls is looked into needlessly, no more
        )
        self._counts = [(count, one) for one in self._keepers for count in one.counts]
        self._slots = [(get, name, one) for one in self._keepers for get, name in one.slots]

    def call(self, element: Any, key: Words) -> Any:
        """The result for one element, with the generators set by `key`.

        Raises:
            DrawRememberedError: it was called for the same element again, and drew otherwise.
        """
        if not self._repeatable:
            return self._function(element)
        self._calls += 1
        early = self._calls <= FIRST
        given = _copied(element) if early or self._changes_elements else element
        before = self._last or self._mark()
        result = self._function(element)
        self._last = after = self._mark()
        if early and not self._changes_elements:
            self._changes_elements = given is _NO_COPY or rolled(0, given) != rolled(0, element)
        if (early or after != before) and given is not _NO_COPY:
            where = self._put(before, after)
            if self._is_tried(where, early=early):
                self._repeat(given, key, where)
        return result

    def _mark(self) -> _Mark:
        """Another one after something was remembered."""
        return [count() for count, _ in self._counts], [id(get(name)) for get, name, _ in self._slots]

    def _put(self, before: _Mark, after: _Mark) -> list[str]:
        """Where something was put between two marks."""
        counts = zip(self._counts, before[0], after[0], strict=True)
        slots = zip(self._slots, before[1], after[1], strict=True)
        found = [one.told() for (_, one), a, b in counts if a != b]
        return [*found, *(one.told(name) for (_, name, one), a, b in slots if a != b)]

    def _is_tried(self, where: list[str], *, early: bool) -> bool:
        """Whether this call is to be repeated."""
        if not where:
            return early and self._drew < 2 and not self._effects
        self._kept += 1
        return self._kept <= EACH or self._kept % SOME == 0

    def _repeat(self, given: Any, key: Words, where: list[str]) -> None:
        after = rng_states.of_process()
        draw_scope.refill(key)
        if rng_states.of_process() == after:  # it has not drawn
            return
        self._drew += 1
        restores = [k.saved() for k in self._keepers if self._effects or not isinstance(k, Numbers)]
        try:
            self._function(given)
        except Exception:  # its element cannot be used twice
            again = after
        else:
            again = rng_states.of_process()
        finally:
            for restore in restores:
                restore()
            after.restore()
            self._last = None
        if again != after:
            raise DrawRememberedError(where)


_NO_COPY: Any = object()


def _copied(element: Any) -> Any:
    try:
        return copy.deepcopy(element)
    except Exception:  # an open file, an iterator
        return _NO_COPY


def _is_put_back(effect: Finding) -> bool:
    return effect.kind in _PUT_BACK or effect.kind.removeprefix("call of ") in _METHODS
