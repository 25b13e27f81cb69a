"""Elements of an indexable object, of an iterable, a range, random numbers; and `cache`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from samebits._context import Words
from samebits.data._calls import process_generators
from samebits.data._calls.own_generators import OwnGenerators
from samebits.data._calls.remembered_draws import DrawRememberedError, UnsetGeneratorError
from samebits.data._calls.user_function import Function, key_words
from samebits.data._rolling_digest import update_digest
from samebits.data._stages import stage as stages
from samebits.errors import EmptyDatasetError, InvalidArgumentError, PipelineError
from samebits.random import _int_keys as int_keys

_PLAIN_ITERABLES = (list, tuple, range, str, dict, np.ndarray, torch.Tensor)


class FirstElements:
    """The first elements that a source has delivered, with their digests: to find those changed in place."""

    MOST = 16

    def __init__(self) -> None:
        self._noted: list[tuple[int, Any, int]] = []

    def note(self, indices: list[int], elements: list[Any]) -> None:
        room = self.MOST - len(self._noted)
        for index, element in zip(indices[:room], elements[:room], strict=True):
            self._noted.append((index, element, update_digest(0, element)))

    def iter_changed(self) -> Iterator[tuple[int, int]]:
        """Yields (index, digest now) of the elements that have changed."""
        for index, element, was in self._noted:
            if (now := update_digest(0, element)) != was:
                yield index, now


class Source(stages.Addressed):
    """The elements of an indexable object, read by index; `__getitems__` where the object has it."""

    kind = "from_source"

    def __init__(self, data: Any, *, stateful: bool | None = None) -> None:
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise InvalidArgumentError(
                "Pipeline.from_source takes an object with __len__ and __getitem__, got "
                f"{type(data).__name__}; use Pipeline.from_iterable for what can only be iterated"
            )
        self.data = data
        self._length = len(data)
        if self._length == 0:
            raise EmptyDatasetError(
                f"Pipeline.from_source: {type(data).__name__} has no elements (its length is 0)"
            )
        at_once = getattr(data, "__getitems__", None)
        self._at_once = at_once is not None
        self.function = Function(at_once or data.__getitem__, self.kind, stateful=stateful)
        parameters = {"data": type(data).__name__, "length": self._length}
        super().__init__(parameters=parameters, functions=[self.function])
        self.handed: FirstElements | None = None
        """The elements that are delivered, while they are watched."""

    @property
    @override
    def length(self) -> int:
        return self._length

    @override
    def fetch(self, ordinals: stages.Ordinals) -> list[Any]:
        elements = self._fetch(ordinals)
        handed = self.handed  # another thread may end the watch
        if handed is not None:
            handed.note((ordinals % self._length).tolist(), elements)
        return elements

    def read(self, index: int) -> Any:
        """Returns one element by its index; its draws find the generators as they are."""
        return self.function.call([index])[0] if self._at_once else self.function.call(index)

    def _fetch(self, ordinals: stages.Ordinals) -> list[Any]:
        if len(self.data) != self._length:
            raise PipelineError(
                f"Pipeline.from_source: {type(self.data).__name__} had {self._length} elements when the "
                f"pipeline was made, and has {len(self.data)} now. Make the pipeline when its source is "
                "complete, or use from_iterable"
            )
        if type(self.data) in (np.ndarray, np.memmap, torch.Tensor):
            return list(self.data[ordinals % self._length])  # copied: a function may change its element
        indices = (ordinals % self._length).tolist()
        if not self._at_once:
            return self.function.call_each(self.key, ordinals.tolist(), indices)
        own = self.function.own if self.function.own.enter() else None
        if own is None and not process_generators.is_filling():
            return self._check_elements(self.function.call(indices), indices)
        elements = []  # one by one, so that the draws of one do not depend on its neighbours
        rows = key_words(self.key, ordinals)
        filled = process_generators.fill_each(own, rows)
        for ordinal, index, each, _ in zip(ordinals.tolist(), indices, rows.tolist(), filled, strict=False):
            try:
                elements += self._check_elements(
                    self.function.memos.call([index], (each[0], each[1])), [index]
                )
            except (DrawRememberedError, UnsetGeneratorError) as error:
                raise self.function.memo_error(error, ordinal, index) from None
        return elements

    def _check_elements(self, elements: Any, indices: list[int]) -> list[Any]:
        is_sequence = isinstance(elements, list | tuple | np.ndarray | torch.Tensor)
        if not is_sequence or len(elements) != len(indices):
            raise PipelineError(
                f"Pipeline.from_source: {type(self.data).__name__}.__getitems__ gave "
                f"{type(elements).__name__} for {len(indices)} indices; it must give a list with one element "
                "for each"
            )
        return list(elements)


class Range(stages.Addressed):
    """The integers of `range(*arguments)`."""

    kind = "range"

    def __init__(self, *arguments: int) -> None:
        self.range = range(*arguments)
        super().__init__(parameters={"range": str(self.range)})
        if not self.range:
            raise EmptyDatasetError(f"Pipeline.range{arguments}: this range has no elements")

    @property
    @override
    def length(self) -> int:
        return len(self.range)

    @override
    def fetch(self, ordinals: stages.Ordinals) -> list[int]:
        numbers = ordinals % len(self.range)
        numbers *= self.range.step
        numbers += self.range.start
        return numbers.tolist()


class Random(stages.Addressed):
    """Uniform integers of [0, 2**63), without end."""

    kind = "random"

    def __init__(self, seed: int | None) -> None:
        super().__init__(parameters={"seed": seed or 0})
        self.seed, self.draws, self.endless = seed or 0, seed is None, True

    @property
    @override
    def length(self) -> int:
        return stages.INFINITE

    @override
    def fetch(self, ordinals: stages.Ordinals) -> list[int]:
        key = int_keys.fold(self.key, self.seed)
        return [int_keys.fold(key, ordinal)[0] >> 1 for ordinal in ordinals.tolist()]


class IterableSource(stages.Streamed):
    """The elements of an iterable. State: elements read; a resume reads and drops those before."""

    kind = "from_iterable"

    def __init__(self, iterable: Iterable[Any] | Callable[[], Iterable[Any]]) -> None:
        if hasattr(iterable, "__next__") or not (callable(iterable) or hasattr(iterable, "__iter__")):
            raise InvalidArgumentError(
                f"Pipeline.from_iterable({iterable!r:.60}): takes an iterable that can be read again and "
                "again, or a function that gives an iterable, since every epoch and every resume reads it "
                "anew. For a generator pass its function: from_iterable(read_lines), not "
                "from_iterable(read_lines())"
            )
        super().__init__(
            parameters={"iterable": getattr(iterable, "__qualname__", type(iterable).__name__)},
            functions=[Function(iterable, self.kind)] if callable(iterable) else [],
        )
        self.iterable = iterable
        if not callable(iterable) and not isinstance(iterable, _PLAIN_ITERABLES):
            self.unread = "an iterator of a class that is not read"

    @override
    def stream(
        self, reader: stages.Reader, repetition: int, state: stages.State
    ) -> Iterator[tuple[Any, stages.State]]:
        own = OwnGenerators(lambda: [[("iterable", self.iterable)]])
        process_generators.fill_if_needed(own, self.key, repetition, 0)
        iterator = iter(self.iterable() if callable(self.iterable) else self.iterable)
        number = 0
        while True:
            number += 1
            process_generators.fill_if_needed(own, self.key, repetition, number)
            try:
                element = next(iterator)
            except StopIteration:
                return
            except Exception as error:
                raise PipelineError(
                    f"Pipeline.{self.describe()}: element {number - 1} raised {type(error).__name__}: {error}"
                ) from error
            if number > (state or 0):
                yield element, number


class Cache(stages.SameLength):
    """An addressed stage's elements, kept in memory; every reader gets a copy, which it may change.

    Every repetition is the first one, so that draws below do not depend on which repetition came first.
    """

    kind = "cache"

    def __init__(self, stage: stages.Addressed) -> None:
        super().__init__(stage)
        self._kept: dict[Words, dict[int, Any]] = {}

    @override
    def fetch(self, ordinals: stages.Ordinals) -> list[Any]:
        cached = self._kept.setdefault(self.key, {})
        indices = (ordinals % self.length).tolist()
        missing = [index for index in dict.fromkeys(indices) if index not in cached]
        if missing:
            elements = self.inputs[0].fetch(np.array(missing, np.int64))
            cached.update(zip(missing, elements, strict=True))
        return [copy.deepcopy(cached[index]) for index in indices]


@dataclass
class _CachedStream:
    """The elements read of a stream so far."""

    elements: list[Any] = field(default_factory=list)
    after: stages.State = None
    complete: bool = False


class StreamCache(stages.Streamed):
    """A stream's elements, kept in memory as they are read. State: elements delivered."""

    kind = "cache"

    def __init__(self, stage: stages.Stage) -> None:
        super().__init__(stage)
        self._kept: dict[Words, _CachedStream] = {}

    @override
    def stream(
        self, reader: stages.Reader, repetition: int, state: stages.State
    ) -> Iterator[tuple[Any, stages.State]]:
        cached = self._kept.setdefault(self.key, _CachedStream())
        number = state or 0
        while True:
            while number < len(cached.elements):
                number += 1
                yield copy.deepcopy(cached.elements[number - 1]), number
            if cached.complete:
                return
            self._read_until(cached, reader, number)

    def _read_until(self, cached: _CachedStream, reader: stages.Reader, number: int) -> None:
        """Reads until element `number` is there, and some more: each call opens the stream anew."""
        for element, after in reader.read(self.inputs[0], 0, cached.after):
            cached.elements.append(element)
            cached.after = after
            if len(cached.elements) >= number + 64:
                return
        cached.complete = True
