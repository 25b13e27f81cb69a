"""Detection of functions that remember a draw: a process's first element would determine all others in it.

A call that left something remembered (see `keepers`) is repeated with the same element and generators. A memo
of a computed value makes no difference; a memo of a draw is not drawn again, so the generators end elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from samebits._context import Words
from samebits._objects import rng_states
from samebits._objects.keepers import LARGE, Keeper, Restore, keepers
from samebits._program.effects import Finding
from samebits.data._calls import process_generators
from samebits.data._calls.own_generators import OwnGenerators, put_back
from samebits.data._rolling_digest import update_digest

FIRST = 16
"""Calls that are checked closely: with a copy of the element, and a repetition of the first two that draw."""
EACH, SOME = 64, 16
"""Of the calls after which something is remembered, the first EACH are repeated, and then every SOME-th."""
_RESTORED = ("attribute", "item", "closure variable set", "global variable set", "changed while it ran")
"""Side effects that keepers restore after a repetition: not a file or an iterator that was read."""
_METHODS = ("append", "add", "update", "setdefault", "setattr", "extend", "__setitem__")


_Mark = tuple[list[int], list[int]]


class DrawRememberedError(Exception):
    """A function keeps what it drew: (where)."""


class UnsetGeneratorError(Exception):
    """Two calls with equal generators gave different results."""


class OrderDependentError(Exception):
    """A result depends on what earlier calls have left: (the result)."""


class Memos:
    """The memories of one function, in one process."""

    def __init__(
        self,
        function: Callable[..., Any],
        own: Callable[[], OwnGenerators],
        *,
        effects: list[Finding],
        repeatable: bool = True,
        is_read: bool = True,
        compares_effects: bool = False,
    ) -> None:
        """`own`: generators of objects; `effects`: lasting changes; `repeatable`: False: call it once.

        `is_read`: False: there may be other effects, too. `compares_effects`: results tell if these matter.
        """
        self._function, self._own = function, own
        self._keepers: list[Keeper] = keepers(function)
        self._effects = effects
        self._repeatable = repeatable and all(
            effect.kind in _RESTORED or effect.kind.removeprefix("call of ") in _METHODS for effect in effects
        )
        large = [one for one in self._keepers if one.array is not None and one.array.nbytes > LARGE]
        kept = {id(one.array) for one in large} & {effect.target for effect in effects}
        if effects and large and (kept or not compares_effects):
            self._repeatable = False
        self._compares = compares_effects or not effects
        self._saved = [one for one in self._keepers if one.array is None or effects or not is_read]
        self._saved = [one for one in self._saved if one not in large]
        self._calls = self._drew = self._kept = 0
        self._changes_elements = False
        self._last: _Mark | None = None  # changes by others between two calls cost a needless repetition only
        self._counts = [(count, one) for one in self._keepers for count in one.counts]
        self._slots = [(get, name, one) for one in self._keepers for get, name in one.slots]

    def call(self, element: Any, key: Words) -> Any:
        """Returns the result for one element, with the generators set by `key`.

        Raises DrawRememberedError if the function, called again for the same element, drew differently;
        UnsetGeneratorError if the first call, repeated, gave other bits in an array or a tensor.
        """
        if not self._repeatable:
            return self._function(element)
        self._calls += 1
        if self._compares and (self._calls == 1 or self._effects):
            return self._compare(element, key)
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

    def _compare(self, element: Any, key: Words) -> Any:
        """Returns the result for one element, called twice if it can be copied."""
        element_copy, before = _copy(element), self._mark()
        begin = [keeper.save() for keeper in self._saved] if self._effects else []
        result = self._function(element)
        if element_copy is _NO_COPY:
            return result
        first = self._digests(result)
        if self._own().has_new():  # the task is computed again, with them
            self._calls = 0
            return result
        where = self._changed_places(before, self._mark())
        again, differs = self._call_again(_copy(element_copy), key)
        if differs:
            raise DrawRememberedError(where)
        now = first if again is _NO_RESULT else self._digests(again)
        if begin and now != first:
            third = self._digests(self._call_again(element_copy, key, begin)[0])
            if any(b != a == c for a, b, c in zip(first, now, third, strict=True)):
                raise OrderDependentError(result)
        if now[0] != first[0]:
            raise UnsetGeneratorError
        return result

    def _digests(self, result: Any) -> tuple[int, int]:
        """Returns the digest of a result's arrays, and where a call leaves something, of its numbers, too."""
        return _digest_of_arrays(result), update_digest(0, result if self._effects else None)

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
        if not where:
            return early and self._drew < 2 and not self._effects
        self._kept += 1
        return self._kept <= EACH or self._kept % SOME == 0

    def _repeat(self, element_copy: Any, key: Words, where: list[str]) -> None:
        own = self._own()
        after, states = _states(own), own.save()
        process_generators.refill_all(own, key)
        drew = _states(own) != after
        after[0].restore()
        put_back(states)
        self._drew += drew
        if drew and self._call_again(element_copy, key)[1]:
            raise DrawRememberedError(where)

    def _call_again(self, element_copy: Any, key: Words, begin: Sequence[Restore] = ()) -> tuple[Any, bool]:
        """Returns the result of a call with the same generators; True if it left them in other states.

        `begin`: restores what was there before the first call.
        """
        own = self._own()
        after, states = _states(own), own.save()
        process_generators.refill_all(own, key)
        restores = [keeper.save() for keeper in self._saved]
        for restore in begin:
            restore()
        result, again = _NO_RESULT, after
        try:
            result = self._function(element_copy)
            again = _states(own)
        except Exception:  # noqa: S110 (its element cannot be used twice)
            pass
        finally:
            for restore in restores:
                restore()
            after[0].restore()
            put_back(states)
            self._last = None
        return result, again != after


def _states(own: OwnGenerators) -> tuple[rng_states.ProcessStates, list[bytes]]:
    return rng_states.of_process(), own.marks()


_NO_COPY: Any = object()
_NO_RESULT: Any = object()


def _digest_of_arrays(value: Any) -> int:
    """Returns the digest of a result's arrays, tensors and images: its numbers may be counters and times."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return update_digest(0, value)
    if isinstance(value, Mapping):  # those of Transformers are no dicts
        return update_digest(0, [_digest_of_arrays(part) for part in value.values()])
    if type(value) is list and len(value) > 1 and all(type(part) in (int, float) for part in value):
        return update_digest(0, value)  # tokens
    if isinstance(value, list | tuple):
        return update_digest(0, [_digest_of_arrays(part) for part in value])
    return update_digest(0, np.asarray(value)) if hasattr(value, "__array_interface__") else 0


def _copy(element: Any) -> Any:
    try:
        return copy.deepcopy(element)
    except Exception:  # an open file, an iterator
        return _NO_COPY
