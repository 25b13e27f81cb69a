"""The stages of a pipeline: those that know their elements by number, and those that are read in order.

A stage is a definition; `bind` makes a copy of it for one key, which can be read. The kinds:

- `Addressed`: element o is a function of (key, o); `Grouped`: so is group o, of any number of elements.
  Ordinals count through repetitions: o = repetition * length + index, so that every epoch and every `repeat`
  is a range of ordinals, and no stage needs to know which one it is in.
- `Streamed`: elements come in order; with each comes the state after it, a small JSON-able value from which
  the stream resumes. State holds ordinals and counts, never contents of elements.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self

import numpy as np

from samebits._context import Words
from samebits.data._calls.user_function import Function
from samebits.data._options import OwnShards
from samebits.random import _int_keys as int_keys

INFINITE = 1 << 40
"""The length of an endless stage: 10**12 elements of a repetition, and 2**22 repetitions, fit an int64."""

State = Any
"""JSON-able: None (the start), an integer, or a list of states."""

Ordinals = np.ndarray
"""int64, one dimension."""

BLOCK = 64
"""Elements of a task where the stage has no batches.

Tasks begin at multiples of it, so that a dataset that reads a block at once (`__getitems__`) finds the same
blocks wherever reading starts."""

Task = tuple[Any, ...]
"""First ordinal and the one after the last, within a repetition; then what else its stage needs for it."""


class Reader(Protocol):
    """The way a streamed stage reads its inputs: inline or by workers, ahead or not; elements are equal."""

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
    unread: str | None = None
    """The reason why it may call code that cannot be read before; None: it calls only its functions."""
    has_digest = True
    """False if the rolling digest of an iteration is not that of its elements."""
    describes_in_parts = False
    """True if a fingerprint hashes the parameters one by one, so that a message can name one of them."""
    counts_epochs = True
    """False for an iteration inside a run, which its key alone tells from others."""
    key_path: tuple[str | int, ...] | None = None
    """Folded into the pipeline's key for the stage's; None: its kind and its depth."""
    key: Words = (0, 0)
    """The key of a bound stage: never drawn from, always folded into."""

    def __init__(
        self, *inputs: Stage, parameters: dict[str, Any] | None = None, functions: Sequence[Function] = ()
    ) -> None:
        self.inputs: tuple[Any, ...] = inputs
        self.parameters = parameters or {}
        """Its definition besides its inputs, as plain values, for the fingerprint and for messages."""
        self.functions = list(functions)
        """The user's functions that it calls."""
        for function in (called := self.all_functions()):
            function.budget = called[0].budget  # one for all that a pipeline reads
        self.depth: int = 1 + max((stage.depth for stage in inputs), default=-1)
        """The number of stages between this one and its farthest source."""
        self.endless = any(stage.endless for stage in inputs)
        """True if one repetition is known to have no end."""

    def bind(self, key: Words) -> Self:
        """Returns a copy that reads, with the key of this stage; its inputs are bound likewise.

        A stage's key is made of the pipeline's, its kind, its distance from the source and, below a stage of
        several inputs, the input's number: a stage added after it later does not move its bits.
        """
        bound = copy.copy(self)
        several = len(self.inputs) > 1
        bound.inputs = tuple(
            stage.bind(int_keys.fold(key, "input", number) if several else key)
            for number, stage in enumerate(self.inputs)
        )
        path = (self.kind, self.depth) if self.key_path is None else self.key_path
        bound.key = int_keys.fold(key, *path)
        return bound

    def chain(self) -> Iterator[Stage]:
        for below in self.inputs:
            yield from below.chain()
        yield self

    def all_functions(self) -> list[Function]:
        """Returns the user's functions of this stage and of all below it, from the sources on."""
        return [function for stage in self.chain() for function in stage.functions]

    def may_draw(self) -> str | None:
        """Returns the function, here or below, that may draw from the process's generators, and why."""
        for stage in self.chain():
            if stage.unread is not None:
                return f"{stage.describe()}: {stage.unread}"
            for function in stage.functions:
                if function.reading.may_draw is not None:
                    return f"{stage.kind}({function.name}): {function.reading.may_draw}"
        return None

    def own_generators(self) -> str | None:
        """Returns the names of a function that reaches generators of objects, and of one of these."""
        for function in self.all_functions():
            if function.own.names:
                return f"{function.stage}({function.name}), which reaches {function.own.names[0]},"
        return None

    def needs_seed(self) -> str | None:
        """Returns the name of what draws or may draw, here or below; None if a seed would decide nothing."""
        own = self.describe() if self.draws else None
        for function in self.functions:
            if function.draws is not None:
                own = f"{self.kind}({function.name}): its parameter {function.draws}"
        below = (stage.needs_seed() for stage in self.inputs)
        return own or next(filter(None, below), None) or self.may_draw() or self.own_generators()

    @property
    @abstractmethod
    def length(self) -> int | None:
        """Elements of one repetition; `INFINITE`; or None if it is known only after reading."""

    def begin_at(self, state: State, digest: int) -> None:  # noqa: B027 (most have nothing to note)
        """Notes that a bound stage is read from `state` on, where the rolling digest was `digest`."""

    def next_digest(self, before: int, after: State) -> int | None:  # noqa: B027 (most have none)
        """Returns the stage's own rolling digest where its state is `after`; None: that of its elements."""

    def parts(self) -> list[str]:
        """Returns the texts that a fingerprint hashes one by one."""
        if self.describes_in_parts:
            return [f"{self.kind}({name}={value})" for name, value in self.parameters.items()]
        return [self.describe()]

    def describe(self) -> str:
        """Returns the stage as the user wrote it, for messages: `batch(batch_size=64)`."""
        return f"{self.kind}({', '.join(f'{name}={value}' for name, value in self.parameters.items())})"


class Dividing(Stage):
    """A stage that makes batches, which may be those of a process's logical shards."""

    shards: OwnShards | None = None
    """Each element is the list of the batches of these; None: it is a batch."""
    only: range | None = None
    """The numbers of the batches that are computed, of a loader; None: all."""

    @abstractmethod
    def sizes(self) -> list[int]:
        """Returns the rows of a batch, and of a smaller last one; those that are known before reading."""

    def divide(self, shards: OwnShards) -> None:
        """Makes each element of a bound stage the list of the batches of these shards.

        Raises `InvalidArgumentError` for batches that cannot be shared out.
        """
        for number, size in enumerate(self.sizes()):
            shards.rows(size, f"{'the last batch of ' if number else ''}{self.describe()}")
        self.shards = shards

    def rows_of_shards(self, rows: int) -> list[range]:
        """Returns the rows of each own shard in a batch of `rows` rows."""
        assert self.shards is not None
        return self.shards.rows(rows, f"a batch of {self.describe()}")


class Blocks(Stage):
    """A stage that workers can compute in pieces: group o of elements is a function of (key, o)."""

    unit = "element"
    """The name of a group in messages."""

    @property
    @abstractmethod
    def groups(self) -> int:
        """Groups of one repetition, or `INFINITE`."""

    @abstractmethod
    def tasks(self, repetition: int, first: int) -> Iterator[Task]:
        """Yields the tasks of one repetition from that with group `first` on."""

    @abstractmethod
    def compute(self, repetition: int, task: Task) -> list[Any]:
        """Returns the results of a task: elements of an addressed stage, else groups."""

    def begin_worker(self, worker: int) -> None:
        """Prepares the process of worker number `worker` for tasks of this stage."""


class Numbered(Blocks):
    """Blocks whose tasks are ranges of ordinals."""

    makes_batches = False
    single = False
    """True if no group has more than one element."""

    @property
    def task_size(self) -> int:
        """The groups of one task: one if the stage makes batches or maps them."""
        return 1 if self.makes_batches or any(stage.task_size == 1 for stage in self.inputs) else BLOCK

    def tasks(self, repetition: int, first: int) -> Iterator[Task]:
        size, groups = self.task_size, self.groups
        for start in range(first // size * size, groups, size):
            yield start, min(start + size, groups)

    def ordinals(self, repetition: int, task: Task) -> Ordinals:
        ordinals = np.arange(*task, dtype=np.int64)
        if repetition:
            ordinals += repetition * self.groups
        return ordinals


class Following(Numbered):
    """A stage of one input, whose ordinals tell without computing which ordinals of the input they need."""

    @abstractmethod
    def needed(self, ordinals: Ordinals) -> Ordinals:
        """Returns the input's ordinals that these need."""


class SameOrdinals(Following):
    """A stage whose ordinals need the same ones of the input."""

    def needed(self, ordinals: Ordinals) -> Ordinals:
        return ordinals


class Addressed(Numbered):
    """A stage whose element o is a function of (key, o): every group is one element."""

    single = True

    @property
    @abstractmethod
    def length(self) -> int:
        """Elements of one repetition, or `INFINITE`."""

    @property
    def groups(self) -> int:
        return self.length

    @abstractmethod
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        """Returns the elements of these ordinals, in their order."""

    def compute(self, repetition: int, task: Task) -> list[Any]:
        return self.fetch(self.ordinals(repetition, task))

    def iterate(self, ordinal: int) -> Iterator[Any]:
        """Yields the element."""
        yield from self.fetch(np.array([ordinal], np.int64))

    def block(self, ordinals: Ordinals) -> list[list[Any]]:
        return [[element] for element in self.fetch(ordinals)]


class SameLength(Addressed):
    """An addressed stage with as many elements as its input."""

    @property
    def length(self) -> int:
        return self.inputs[0].length


class Grouped(Numbered):
    """A stage whose groups have any number of elements: `filter`, `flat_map`, `unbatch`, those after them.

    Its elements are numbered by place: (o, number in group o).
    """

    @property
    def length(self) -> int | None:
        return None

    @abstractmethod
    def block(self, ordinals: Ordinals) -> list[list[Any]]:
        """Returns the groups of these ordinals, in their order."""

    def compute(self, repetition: int, task: Task) -> list[Any]:
        return self.block(self.ordinals(repetition, task))

    @abstractmethod
    def iterate(self, ordinal: int) -> Iterator[Any]:
        """Yields the elements of a group."""


class Streamed(Stage):
    """A stage that is read in order."""

    @property
    def length(self) -> int | None:
        return None

    @abstractmethod
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """Yields the elements of one repetition from `state` on (None: all), each with the state after it."""


HeldElement = tuple[Any, State]
"""An element, and the input's state before it."""


class HoldingStream(Streamed):
    """A streamed stage that holds elements of its single input back.

    For every element held, its state has the input's state before it: a resume reads those elements again.
    """

    def read_input(
        self, reader: Reader, repetition: int, before: State
    ) -> Iterator[tuple[HeldElement, State]]:
        """Yields the input's elements with the states before them, and the state after each."""
        for element, after in reader.read(self.inputs[0], repetition, before):
            yield (element, before), after
            before = after

    def reread(self, reader: Reader, repetition: int, references: Sequence[State]) -> list[HeldElement]:
        """Returns the elements that were held when the state was taken, read again."""
        return [(reader.read_one(self.inputs[0], repetition, before), before) for before in references]


def split_repetition(ordinals: Ordinals, length: int, inner: int) -> tuple[Ordinals, Ordinals]:
    """Returns (index in the repetition, ordinal where it starts in an input of length `inner`)."""
    repetition, index = np.divmod(ordinals, length)
    return index, repetition * inner


def place(state: State) -> tuple[int, int]:
    """Returns the next group, and how many of its elements have been delivered."""
    if state is None:
        return 0, 0
    return (state, 0) if isinstance(state, int) else tuple(state)
