"""Detection of functions that remember a draw: the element that is first in a process would determine all others in it.

A call that left something remembered (see `keepers`) is repeated with the same element and the same generators. A memo
of a computed value makes no difference; a memo of a draw is not drawn again, so the generators end elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from samebits._context import Words
from samebits._inspect import rng_states
from samebits.data._calls import process_generators
from samebits.data._calls.draw_keepers import Keeper, Numbers
from samebits.data._calls.reachable_keepers import keepers
from samebits.data._purity import Finding
from samebits.data._rolling_digest import update_digest

FIRST = 16
"""Calls that are checked closely: a copy of the element is kept, and the first two that draw are repeated anyway."""
EACH, SOME = 64, 16
"""Of the calls after which something is remembered, the first so many are repeated, and then one of so many."""
_RESTORED = ("attribute", "item", "closure variable set", "global variable set", "changed while it ran")
"""Side effects that keepers restore after a repetition; they do not restore a file or an iterator that was read."""
_METHODS = ("append", "add", "update", "setdefault", "setattr", "extend", "__setitem__")


_Mark = tuple[list[int], list[int]]


class DrawRememberedError(Exception):
    """A function keeps what it drew: (where)."""


class Memos:
    """The memories of one function, in one process."""

    def __init__(
        self, function: Callable[..., Any], *, effects: list[Finding], repeatable: bool = True
    ) -> None:
        """`effects`: known lasting changes of a call; `repeatable`: False if it must be called only once."""
        self._function = function
        self._keepers: list[Keeper] = keepers(function)
        self._effects = effects
        self._repeatable = repeatable and all(map(_is_restored, effects))
        if effects and any(isinstance(one, Numbers) and one.large for one in self._keepers):
            self._repeatable = False
        self._calls = self._drew = self._kept = 0
        self._changes_elements = False
        self._last: _Mark | None = None  # changes by others between two calls cost a needless repetition only
        self._counts = [(count, one) for one in self._keepers for count in one.counts]
        self._slots = [(get, name, one) for one in self._keepers for get, name in one.slots]

    def call(self, element: Any, key: Words) -> Any:
        """Returns the result for one element, with the generators set by `key`.

        Raises:
            DrawRememberedError: called again for the same element, the function drew differently.
        """
        if not self._repeatable:
            return self._function(element)
        self._calls += 1
        early = self._calls <= FIRST
        element_copy = _copy(element) if early or self._changes_elements else element
        before = self._last or self._mark()
        result = self._function(element)
        self._last = after = self._mark()
        if early and not self._changes_elements:
            self._changes_elements = element_copy is _NO_COPY or update_digest(
                0, element_copy
            ) != update_digest(0, element)
        if (early or after != before) and element_copy is not _NO_COPY:
            where = self._changed_places(before, after)
            if self._is_to_repeat(where, early=early):
                self._repeat(element_copy, key, where)
        return result

    def _mark(self) -> _Mark:
        """Returns a mark that differs once something was remembered."""
        return [count() for count, _ in self._counts], [id(get(name)) for get, name, _ in self._slots]

    def _changed_places(self, before: _Mark, after: _Mark) -> list[str]:
        """Returns the names of the places where something was put between two marks."""
        counts = zip(self._counts, before[0], after[0], strict=True)
        slots = zip(self._slots, before[1], after[1], strict=True)
        found = [one.describe() for (_, one), a, b in counts if a != b]
        return [*found, *(one.describe(name) for (_, name, one), a, b in slots if a != b)]

    def _is_to_repeat(self, where: list[str], *, early: bool) -> bool:
        """Returns True if this call is to be repeated."""
        if not where:
            return early and self._drew < 2 and not self._effects
        self._kept += 1
        return self._kept <= EACH or self._kept % SOME == 0

    def _repeat(self, element_copy: Any, key: Words, where: list[str]) -> None:
        after = rng_states.of_process()
        process_generators.refill(key)
        if rng_states.of_process() == after:  # it has not drawn
            return
        self._drew += 1
        restores = [k.save() for k in self._keepers if self._effects or not isinstance(k, Numbers)]
        try:
            self._function(element_copy)
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


def _copy(element: Any) -> Any:
    try:
        return copy.deepcopy(element)
    except Exception:  # an open file, an iterator
        return _NO_COPY


def _is_restored(effect: Finding) -> bool:
    return effect.kind in _RESTORED or effect.kind.removeprefix("call of ") in _METHODS
