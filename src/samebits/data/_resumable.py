"""The epochs of a pipeline or a loader, and the iterator of one: they resume after any element."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from samebits._arguments import require
from samebits._context import Position, Words, process
from samebits.data._calls.process_generators import Draws
from samebits.data._fingerprint import fingerprint
from samebits.data._options import Options
from samebits.data._rolling_digest import update_digest
from samebits.data._stages.batch import batching_of
from samebits.data._stages.order import every
from samebits.data._stages.stage import Stage, State, Streamed
from samebits.data._state_dict import ReadPosition
from samebits.data._workers.inline_or_parallel import Inline, draws_of, reader
from samebits.errors import PipelineError
from samebits.random import _int_keys as int_keys

_MADE: weakref.WeakValueDictionary[int, Resumable] = weakref.WeakValueDictionary()


class NextEpoch(NamedTuple):
    """The begin of the next `iter()`."""

    epoch: int = 0
    state: dict[str, Any] | None = None
    """A position in it, as `load_state_dict` got it; None: its first element."""


class Resumable:
    """An iterable whose elements are a function of (stages, seed, epoch, number); it resumes after any.

    Where it is, it says in two places: the iteration under way, and the begin of the next one.

    | event                                   | `_live`                     | `_next`               |
    |-----------------------------------------|-----------------------------|-----------------------|
    | made; the iteration is forgotten        | None                        | as it was: 0          |
    | `iter()`                                | its position, at `_next`    | the epoch after it    |
    | an element is delivered                 | one further                 |                       |
    | `load_state_dict`                       | None                        | the state's           |
    | ... after an `iter()` that was not read | is set there, too           | the state's           |
    | a loop over it has ended                | None                        | the epoch after it    |

    An iteration inside the body of a run's step is none of these: it is keyed by the run's position.
    """

    _stage: Stage
    _options: Options
    _domain: str
    """Folded into the key of the seed."""
    _next = NextEpoch()
    _live: ReadPosition | None = None
    _read_as: Mapping[str, Any] = MappingProxyType({})
    """Options of the iterators that are made: the shards of the loop that makes one."""
    _is_state = False
    """True for an object of a run, which commits its position: `iter()` in a step is then its next epoch."""
    _count = 0
    """The number of all that the process has made."""
    _ordinal: int
    """The number of these that the process had made before."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Makes one, and numbers it."""
        made = super().__new__(cls)
        vars(made)["_ordinal"] = Resumable._count
        _MADE[Resumable._count] = made
        Resumable._count += 1
        return made

    def __iter__(self) -> PipelineIterator:
        if process.position is not None and not self._is_state:
            return self._iter_at(process.position, 0)
        begin = self._next
        if begin.state is not None and self._live is not None and self._live.is_read:
            begin = NextEpoch(self._live.epoch + 1)  # the iterator that was there already has resumed
        iterator = self._iterate(self._key(), begin.epoch)
        if begin.state is not None:
            iterator.load_state_dict(begin.state)
        self._live, self._next = iterator.position, NextEpoch(begin.epoch + 1)
        return iterator

    def _iter_at(self, position: Position, start: int) -> PipelineIterator:
        """Returns the elements from `start` on of an iteration keyed by a run's position: it is no epoch."""
        key = int_keys.fold(self._key(), "inside", position.loop, position.step, *position.inside)
        stage = copy.copy(self._stage)
        stage.counts_epochs = False
        iterator = PipelineIterator(stage, key, 0, self._seed(), self._read_options())
        if start:
            iterator.skip_batches(start)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the current iteration, or of the next epoch's start: small and JSON-able.

        Elements count when they are delivered, not when workers have made them ahead.
        """
        if self._live is not None and not self._live.exhausted:
            return self._live.state_dict()
        return self._next.state or self._iterate(self._key(), self._next.epoch).state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes the next `iter()` after the element at which `state` was taken: O(1) if there is an index.

        An iterator that was made before, and not read from, is set there, too: `it = iter(loader)` may stand
        above the line that resumes.

        Raises:
            PipelineMismatchError: no such state, of a newer samebits, or of another pipeline; it says where.
        """
        probe = self._iterate(self._key(), 0)
        probe.load_state_dict(state)
        self._next = NextEpoch(probe.position.epoch, dict(state))
        if self._live is None or self._live.is_read:
            self._live = None
        else:
            self._live.load_state_dict(state)

    def _continue_after(self, state: dict[str, Any]) -> None:
        """Starts with the epoch after a loop that has ended, whatever has become of the dataset since."""
        if "delivered" not in state:
            self.load_state_dict(state)  # which says that it is none
        self._next, self._live = NextEpoch(state["epoch"] + bool(state["delivered"])), None

    @staticmethod
    def _continue_numbered(ordinal: int, state: Any) -> None:
        found = _MADE.get(ordinal)
        if found is not None and isinstance(state, dict) and state.get("pipeline") == found.fingerprint():
            found._continue_after(state)

    @property
    def _rolling_digest(self) -> int:
        """The rolling digest of the elements that the current iteration has delivered; 0 if there is none."""
        return 0 if self._live is None or not self._live.stage.has_digest else self._live.rolling_digest

    def _forget_iteration(self) -> None:
        """Ends an abandoned iteration: the position is again where the next `iter()` starts."""
        self._live = None

    def fingerprint(self) -> str:
        """Returns a hash of the stages and the seed; a saved position holds only for an equal one."""
        return fingerprint(self._stage, self._seed())

    def _iterate(self, key: Words, epoch: int) -> PipelineIterator:
        return PipelineIterator(self._stage, key, epoch, self._seed(), self._read_options())

    @contextmanager
    def _reading_as(self, options: Mapping[str, Any]) -> Iterator[None]:
        """Gives the iterators that are made in the block these options."""
        vars(self)["_read_as"] = options
        try:
            yield
        finally:
            del vars(self)["_read_as"]

    def _read_options(self) -> Options:
        return replace(self._options, **self._read_as) if self._read_as else self._options

    def _key(self) -> Words:
        return int_keys.fold(int_keys.root(self._seed()), self._domain)

    def _seed(self) -> int:
        raise NotImplementedError


class PipelineIterator(Iterator[Any]):
    """The elements of one epoch of a pipeline, from any of them on."""

    def __init__(self, stage: Stage, key: Words, epoch: int, seed: int, options: Options) -> None:
        self._stage = stage.bind(key)
        self._streamed = isinstance(stage, Streamed)
        self._options = options
        self._placement = options.placement()
        self._draws = Draws()
        self._elements: Iterator[tuple[Any, State]] | None = None
        if options.shards is not None:
            batching_of(self._stage, options.shards).divide(options.shards)
        elif options.every is not None:
            self._stage = every(self._stage, *options.every)
        elif (share := options.share()).world_size > 1:
            batching = batching_of(self._stage)
            share.check(batching.batch_size)
            batching.share = share
        length = None if self._streamed else self._stage.length
        self.position = ReadPosition(stage, seed, options, epoch, length)

    def __next__(self) -> Any:
        element = self._next_element()
        position = self.position
        before = position.rolling_digest
        own = self._stage.next_digest(before, position.state)
        if own is None:  # the shards of one process are no digest of the batch
            own = before if self._options.shards is not None else update_digest(before, element)
        position.rolling_digest = own
        return element if self._placement is None else self._placement(element)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last element delivered: small, JSON-able, free of worker numbers.

        `delivered` counts the elements of this epoch; `digest` is a rolling digest of them, so a resumed
        iteration ends with the same digest as an uninterrupted one.

        Raises:
            UnimplementedError: elements come in order of completion, so no position says which ones came.
        """
        return self.position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes after the element at which `state` was taken.

        Raises:
            PipelineMismatchError: this is no such state, or of a newer samebits, or of another pipeline.
        """
        self.position.load_state_dict(state)
        self.close()

    def skip_batches(self, count: int) -> None:
        """Steps over the next `count` elements: those with numbers are not computed, others are read.

        They count as delivered; the rolling digest records that they were skipped.
        """
        require(count >= 0, "PipelineIterator.skip_batches", "must be at least 0", count=count)
        position = self.position
        if position.length is not None:
            self.close()
            before = position.state or 0
            position.state = min(before + count, position.length)
            position.delivered += position.state - before
        else:
            for _ in range(count):
                self._next_element()
        before = position.rolling_digest
        position.rolling_digest = update_digest(before, ("skipped", count)) if self._stage.has_digest else 0

    def _next_element(self) -> Any:
        position = self.position
        position.is_read = True
        if position.exhausted:
            raise StopIteration
        if self._elements is None:
            self._elements = self._begin()
        try:
            if self._streamed:
                with self._draws.fill_each_call():
                    element, position.state = next(self._elements)
            else:
                element, position.state = next(self._elements)
        except StopIteration:
            position.exhausted = True
            self.close()
            raise
        except PipelineError as error:
            self.close()
            raise error.with_traceback(None) from error.__cause__  # which has the user's function
        except BaseException:
            self.close()  # so that the next call raises this error again, and does not end the epoch
            raise
        position.delivered += 1
        return element

    def close(self) -> None:
        """Ends the workers; the next element starts them again."""
        self._elements = None
        if (closing := getattr(self, "_closing", None)) is not None:
            closing()

    def _begin(self) -> Iterator[tuple[Any, State]]:
        self._draws = draws_of(self._stage)
        self._stage.begin_at(self.position.state, self.position.rolling_digest)
        chosen = reader(self._stage, self._draws, self._options)
        if not isinstance(chosen, Inline):
            self._closing = weakref.finalize(self, chosen.close)
        return chosen.read(self._stage, self.position.epoch, self.position.state)
