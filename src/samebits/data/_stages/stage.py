"""The stages of a pipeline: those that know their elements by number, and those that are read in order.

A stage is a definition; `bind` makes a copy of it for one key, which can be read. The kinds:

- `Addressed`: element o is a function of (key, o); `Grouped`: so is group o, of any number of elements. Ordinals count
  through repetitions: o = repetition * length + index, so that every epoch and every `repeat` is a range of ordinals,
  and no stage needs to know which one it is in.
- `Streamed`: elements come in order; with each comes the state after it, a small JSON-able value from which the
  stream resumes. State holds ordinals and counts, never contents of elements.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Protocol, Self

import numpy as np

from samebits._context import Words
from samebits.random import _int_keys as int_keys

INFINITE = 1 << 40
"""The length of an endless stage: 10**12 elements of one repetition, and 2**22 repetitions, fit into an int64."""

State = Any
"""JSON-able: None (the start), an integer, or a list of states."""

Ordinals = np.ndarray
"""int64, one dimension."""

BLOCK = 64
"""Elements of a task where the stage has no batches. Tasks begin at multiples of it, so that a dataset that reads a
block at once (`__getitems__`) finds the same blocks wherever reading starts."""

Task = tuple[Any, ...]
"""First ordinal and the one after the last, within one repetition; then what else its stage needs to compute it."""


class Reader(Protocol):
    """The way a streamed stage reads its inputs: inline or by workers, ahead or not; the elements are the same."""

    def read(self, stage: Stage, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """Yields the elements of a bound stage from `state` on, each with the state after it."""
        ...

    def read_one(self, stage: Stage, repetition: int, state: State) -> Any:
        """Returns the element after `state`, read again."""
        ...


class Stage(ABC):
    """One step of a pipeline over its `inputs`. Immutable; a bound copy keeps caches only."""

    kind: str
    """The name of the `Pipeline` method that makes it."""
    draws = False
    """True if the stage itself has an order or numbers that its key decides."""
    has_digest = True
    """False if iterations keep no rolling digest of the elements."""
    key: Words = (0, 0)
    """The key of a bound stage: never drawn from, always folded into."""

    def __init__(self, *inputs: Stage) -> None:
        self.inputs: tuple[Any, ...] = inputs

    def bind(self, key: Words) -> Self:
        """Returns a copy that reads, with the key of this stage; its inputs are bound likewise.

        A stage's key is made of the pipeline's, its kind, its distance from the source and, below a stage of several
        inputs, the input's number: a stage added after it later does not move its bits.
        """
        bound = copy.copy(self)
        several = len(self.inputs) > 1
        bound.inputs = tuple(
            stage.bind(int_keys.fold(key, "input", number) if several else key)
            for number, stage in enumerate(self.inputs)
        )
        bound.key = self.stage_key(key)
        return bound

    def stage_key(self, key: Words) -> Words:
        """Returns the key of this stage, derived from the pipeline's."""
        return int_keys.fold(key, self.kind, self.depth())

    def depth(self) -> int:
        """Returns the number of stages between this one and its farthest source."""
        return 1 + max((stage.depth() for stage in self.inputs), default=-1)

    @property
    @abstractmethod
    def length(self) -> int | None:
        """Elements of one repetition; `INFINITE`; or None if it is known only after reading."""

    @property
    def endless(self) -> bool:
        """True if one repetition is known to have no end."""
        return any(stage.endless for stage in self.inputs)

    def parameters(self) -> dict[str, Any]:
        """Returns what defines its elements besides its inputs, as plain values, for the fingerprint and for messages."""
        return {}

    def keyed_by_position(self) -> Stage:
        """Returns the stage for an iteration inside a run, which its key alone tells from others."""
        return self

    def parts(self) -> list[str]:
        """Returns the texts that a fingerprint hashes one by one, so that a message can name the one that differs."""
        return [self.describe()]

    def describe(self) -> str:
        """Returns the stage as the user wrote it, for messages: `batch(batch_size=64)`."""
        return f"{self.kind}({', '.join(f'{name}={value}' for name, value in self.parameters().items())})"


class Blocks(Stage):
    """A stage that workers can compute in pieces: group o of 0, 1 or more elements is a function of (key, o)."""

    unit = "element"
    """The name of a group in messages."""
    makes_batches = False

    @property
    @abstractmethod
    def groups(self) -> int:
        """Groups of one repetition, or `INFINITE`."""

    @property
    def task_size(self) -> int:
        """The groups of one task: one if the stage makes batches or maps them."""
        return 1 if self.makes_batches or any(stage.task_size == 1 for stage in self.inputs) else BLOCK

    def tasks(self, repetition: int, first: int) -> Iterator[Task]:
        """Yields the tasks of one repetition from that with group `first` on."""
        size, groups = self.task_size, self.groups
        for start in range(first // size * size, groups, size):
            yield start, min(start + size, groups)

    @abstractmethod
    def compute(self, repetition: int, task: Task) -> list[Any]:
        """Returns the results of a task: elements of an addressed stage, else groups."""

    def begin_worker(self, worker: int) -> None:
        """Prepares the process of worker number `worker` for tasks of this stage."""

    def ordinals(self, repetition: int, task: Task) -> Ordinals:
        """Returns the ordinals of a task."""
        ordinals = np.arange(*task, dtype=np.int64)
        if repetition:
            ordinals += repetition * self.groups
        return ordinals


class Addressed(Blocks):
    """A stage whose element o is a function of (key, o): every group is one element."""

    @property
    @abstractmethod
    def length(self) -> int:
        """Elements of one repetition, or `INFINITE`."""

    @property
    def groups(self) -> int:
        """The number of elements."""
        return self.length

    @abstractmethod
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        """Returns the elements of these ordinals, in their order."""

    def compute(self, repetition: int, task: Task) -> list[Any]:
        """Returns the elements of a task."""
        return self.fetch(self.ordinals(repetition, task))

    def block(self, ordinals: Ordinals) -> list[list[Any]]:
        """Returns one group for each element."""
        return [[element] for element in self.fetch(ordinals)]


class Grouped(Blocks):
    """A stage whose groups have any number of elements (`filter`, `flat_map`, `unbatch` and stages after them).

    Its elements are numbered by place: (o, number in group o).
    """

    @property
    def length(self) -> int | None:
        """None: it is known only after reading."""
        return None

    @abstractmethod
    def block(self, ordinals: Ordinals) -> list[list[Any]]:
        """Returns the groups of these ordinals, in their order."""

    def compute(self, repetition: int, task: Task) -> list[Any]:
        """Returns the groups of a task."""
        return self.block(self.ordinals(repetition, task))


class Streamed(Stage):
    """A stage that is read in order."""

    @abstractmethod
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """Yields the elements of one repetition from `state` on (None: all), each with the state after it."""


def split_repetition(ordinals: Ordinals, length: int, inner: int) -> tuple[Ordinals, Ordinals]:
    """Returns (index within the repetition, ordinal at which this repetition starts in an input of length `inner`)."""
    repetition, index = np.divmod(ordinals, length)
    return index, repetition * inner


def place(state: State) -> tuple[int, int]:
    """Returns the next group, and how many of its elements have been delivered."""
    if state is None:
        return 0, 0
    return (state, 0) if isinstance(state, int) else tuple(state)
