"""Whether a function remembers what it drew: then the element that comes first in a process decides for all others there.

A call that made something remembered (see `keepers`) is repeated with the same element and the same generators. A memo of
what was computed changes nothing in that; a memo of a draw is not drawn again, so the generators end elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from samebits.context import Words
from samebits.data import scope
from samebits.data.keepers import Keeper, Numbers
from samebits.data.purity import Finding
from samebits.data.reach import keepers
from samebits.data.rolling import rolled
from samebits.random.mark import mark

FIRST = 16
"""Calls that are looked at closely: a copy of the element is kept, and the first two that draw are repeated anyway."""
EACH, SOME = 64, 16
"""Of the calls after which something is remembered, so many are all repeated, and then one of so many."""
_PUT_BACK = ("attribute", "item", "closure variable set", "global variable set", "changed while it ran")
"""Side effects that keepers put back after a repetition; a file that was read on, or an iterator, they do not."""
_METHODS = ("append", "add", "update", "setdefault", "setattr", "extend", "__setitem__")


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
        before = [one.mark() for one in self._keepers]
        result = self._function(element)
        put = [(k, b) for k, b in zip(self._keepers, before, strict=True) if k.mark() != b]
        if early and not self._changes_elements:
            self._changes_elements = given is _NO_COPY or rolled(0, given) != rolled(0, element)
        if given is not _NO_COPY and self._is_tried(put, early=early):
            self._repeat(given, key, put)
        return result

    def _is_tried(self, put: list[tuple[Keeper, Any]], *, early: bool) -> bool:
        """Whether this call is to be repeated."""
        if not put:
            return early and self._drew < 2 and not self._effects
        self._kept += 1
        return self._kept <= EACH or self._kept % SOME == 0

    def _repeat(self, given: Any, key: Words, put: list[tuple[Keeper, Any]]) -> None:
        after = mark()
        scope.refill(key)
        if mark() == after:  # it has not drawn
            return
        self._drew += 1
        where = [keeper.told(before) for keeper, before in put]
        restores = [k.saved() for k in self._keepers if self._effects or not isinstance(k, Numbers)]
        try:
            self._function(given)
        except Exception:  # its element cannot be used twice
            again = after
        else:
            again = mark()
        finally:
            for restore in restores:
                restore()
            after.restore()
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
