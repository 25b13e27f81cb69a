"""Generators of objects: found once in a process, set from the key of each call, put back after a task.

A library's transform draws from a generator of its own (`albumentations.Compose.random_generator`, MONAI's
`Randomizable.R`), so does many a dataset. Its state would depend on all calls before, and on the worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from types import FunctionType, ModuleType
from typing import Any, NamedTuple, Self

import numpy as np

from samebits._context import Words
from samebits._garbage_collection import without_garbage_collection
from samebits._native import kernel
from samebits._objects.generators import FoundGenerator, generators_in
from samebits._objects.parts import contents
from samebits._objects.rng_states import RESTORABLE
from samebits.data._calls.owned_states import WORDS, OwnedState, State, owned_state
from samebits.random import _int_keys as int_keys
from samebits.random._cpu.philox import fill_words, fold
from samebits.random._process import generator_states

SEARCHES = 4
"""Searches of one process and epoch. Later, a replaced generator is still followed where it stood."""
_AT_ONCE = 16
"""Elements whose words are made by one call."""
_PLACES, _ITEMS = 256, 256
"""Places where a generator may appear that are watched, and items of a container that are looked at."""

Roots = Callable[[], list[list[tuple[str, Any]]]]
Getter = tuple[Callable[[Any], Any], Any]


class _Own(NamedTuple):
    """A generator, where it was found (None: not known), and how it is set."""

    generator: Any
    place: Getter | None
    state: OwnedState


class OwnGenerators:
    """The generators that a function can reach, in this process."""

    def __init__(self, roots: Roots) -> None:
        """`roots`: gives groups of named objects to search; what an earlier group reaches keeps its name."""
        self._roots = roots
        self._searches = 0
        self._names: list[str] = []
        self._entered_with: dict[int, Any] = {}
        """By identity, with the objects: an id is unique only while its object lives."""
        self._own: list[_Own] = []
        self._parts, self._lengths = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._missing: list[Getter] = []
        self._watched: list[Any] = []
        self._sizes: list[int] = []
        self._never = False  # True once a search has found no generator, and no place for one

    @property
    def names(self) -> list[str]:
        """The paths of the generators, as a reader would write them."""
        self.follow()
        return self._names

    def enter(self) -> bool:
        """Returns True if generators are to be set for each call; the task's end puts them back."""
        if self._never:
            return False
        return _thread.block is not None and _thread.block.add(self)

    def set(self, key: Words) -> None:
        next(self.set_each(np.array([key], np.uint64)))

    def set_each(self, keys: np.ndarray) -> Iterator[None]:
        """Sets the generators for the call of the next key, at each step. `keys`: uint64, (calls, 2)."""
        for first in range(0, len(keys), _AT_ONCE):
            part = keys[first : first + _AT_ONCE]
            rows = np.empty((len(part), len(self._own), WORDS), np.uint32)
            _fill_rows(part, self._parts, self._lengths, rows)
            for row in rows:
                for own, words in zip(self._own, row, strict=False):
                    own.state.set(words)
                yield

    def save(self) -> list[tuple[OwnedState, State]]:
        """Returns the states, for `put_back`."""
        return [(own.state, own.state.save()) for own in self._own] if self._own else []

    def marks(self) -> list[Any]:
        """Returns values that differ once a generator was drawn from."""
        return [own.state.mark() for own in self._own]

    def follow(self) -> None:
        """Finds the generators, or those that were replaced since."""
        if not self._searches:
            self._search()
        elif self._own and self._was_replaced():
            if self._searches < SEARCHES:
                self._search()
            else:
                self._own = [_followed(own) for own in self._own]
                self._lengths = np.array([own.state.words for own in self._own], np.int64)
        if self._own or self._entered_with:
            self._entered_with = {id(own.generator): own.generator for own in self._own}

    def has_new(self) -> bool:
        """Returns True if a generator was made or replaced since the task began: the next calls set it."""
        watches = self._searches < SEARCHES
        if watches and ((self._own and self._was_replaced()) or self._may_have_more()):
            self._search()
        if not self._own:
            return False
        return any(id(own.generator) not in self._entered_with for own in self._own)

    def _was_replaced(self) -> bool:
        return any(own.place and _get(own.place) is not own.generator for own in self._own)

    def _may_have_more(self) -> bool:
        # twice for each task: by calls in C where nothing has changed
        if [*map(len, self._watched)] != self._sizes:
            return True
        return bool(self._missing) and any(_get(place) is not None for place in self._missing)

    def _search(self) -> None:
        self._searches += 1
        seen: dict[int, Any] = {}
        found: list[FoundGenerator] = []
        for group in self._roots():
            known = {id(one.generator) for one in found}
            with without_garbage_collection():
                found += [one for one in generators_in(group, seen) if id(one.generator) not in known]
        states = [(one, state) for one in found if (state := owned_state(one.generator)) is not None]
        stand = list(_all_places(seen.values()))
        places = {id(value): place for place, value in reversed(stand)}
        self._own = [_Own(one.generator, places.get(id(one.generator)), state) for one, state in states]
        self._names = [one.path for one, _ in states]
        self._parts = _numbers(self._names)
        self._lengths = np.array([state.words for _, state in states], np.int64)
        empty = (place for place, value in stand if value is None and not str(place[1]).startswith("__"))
        self._missing = list(islice(empty, _PLACES))
        self._watched = list(islice(_watched_sizes(seen.values()), _PLACES))
        self._sizes = [*map(len, self._watched)]
        self._never = not (self._own or self._missing or self._watched)


class OwnBlock:
    """A block of a task: generators of objects that are set in it are put back to their states before it."""

    def __init__(self) -> None:
        self._entered: dict[int, tuple[OwnGenerators, list[tuple[OwnedState, State]]]] = {}

    def __enter__(self) -> Self:
        self._around, _thread.block = _thread.block, self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.block = self._around
        self.put_back()

    def add(self, own: OwnGenerators) -> bool:
        """Saves the states of generators that are about to be set; returns True if there are any."""
        entered = self._entered.get(id(own))
        if entered is None:
            own.follow()
            entered = self._entered[id(own)] = own, own.save()
            generator_states.note_objects_set(bool(entered[1]))
        return bool(entered[1])

    def has_new(self) -> bool:
        """Returns True if the task has made or replaced a generator that its next call will draw from."""
        new = False
        for own, _ in self._entered.values():  # all of them look
            new = own.has_new() or new
        return new

    def put_back(self) -> None:
        for _, states in self._entered.values():
            if states:
                put_back(states)
                generator_states.note_objects_set(-1)
        self._entered.clear()


def put_back(states: list[tuple[OwnedState, State]]) -> None:
    for state, saved in states:
        state.restore(saved)


class _ThreadBlock(threading.local):
    """The block of each thread: outside of it, and in threads beside the training thread, nothing is set."""

    block: OwnBlock | None = None


_thread = _ThreadBlock()


@contextmanager
def no_block() -> Iterator[None]:
    """Sets no generators in the block."""
    around, _thread.block = _thread.block, None
    try:
        yield
    finally:
        _thread.block = around


@kernel("void(uint64[:, ::1], uint64[::1], int64[::1], uint32[:, :, ::1])")
def _fill_rows(keys: Any, parts: Any, sizes: Any, rows: Any) -> None:
    """Writes words of the stream of every key with each of the numbers folded in, between two numbers 624."""
    for call in range(keys.shape[0]):
        for number in range(parts.size):
            seed, offset = fold(keys[call, 0], keys[call, 1], parts[number])
            fill_words(seed, offset, rows[call, number, 1 : 1 + sizes[number]])
            rows[call, number, 0] = rows[call, number, 625] = 624


def _numbers(names: Iterable[str]) -> np.ndarray:
    """Returns the number folded in for each path: not its place in the list, which others move."""
    seen: dict[str, int] = {}
    numbers = []
    for name in names:  # two functions may have variables of one name
        seen[name] = seen.get(name, -1) + 1
        numbers.append(int_keys.as_uint64(f"generator of an object {seen[name]} {name}"))
    return np.array(numbers, np.uint64)


def _get(place: Getter) -> Any:
    get, name = place
    try:
        return get(name)
    except LookupError:
        return None


def _followed(own: _Own) -> _Own:
    """Returns the generator that stands where this one stood."""
    now = own.generator if own.place is None else _get(own.place)
    state = owned_state(now) if isinstance(now, RESTORABLE) and now is not own.generator else None
    return own if state is None else _Own(now, own.place, state)


def _all_places(objects: Iterable[Any]) -> Iterator[tuple[Getter, Any]]:
    """Yields the places of values in attributes, items, closures, global variables and classes."""
    for one in objects:
        if (table := _table(one)) is not None:
            yield from (((table.get, name), value) for name, value in list(table.items())[:_ITEMS])
        elif type(one) is list:
            yield from (((one.__getitem__, at), value) for at, value in enumerate(one[:_ITEMS]))
        elif isinstance(one, FunctionType):
            yield from (((contents, cell), contents(cell)) for cell in one.__closure__ or ())
            known = one.__globals__
            yield from (((known.get, name), known[name]) for name in one.__code__.co_names if name in known)


def _table(one: Any) -> Mapping[Any, Any] | None:
    """Returns the dict of an object, of a class, or the object itself if it is one."""
    if isinstance(one, FunctionType | ModuleType):
        return None
    if type(one) is dict or isinstance(one, type):
        return one if type(one) is dict else vars(one)
    try:
        own = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return None
    return own if type(own) is dict else None


def _watched_sizes(objects: Iterable[Any]) -> Iterator[Any]:
    """Yields attributes of objects, and empty containers, where a generator that is made later may appear."""
    for one in objects:
        if type(one) in (list, dict, set):
            if not one:
                yield one
        elif not isinstance(one, type) and (table := _table(one)) is not None:
            yield table
