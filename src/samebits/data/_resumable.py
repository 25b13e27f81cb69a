"""The epochs of a pipeline or a loader, and the state from which one resumes: made, read and checked.

A position holds only for a pipeline with the same stages and seed, which its fingerprint tells.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import xxhash

from samebits._arguments import require
from samebits._context import Position, Words, process
from samebits.data._calls.process_generators import Draws
from samebits.data._options import Options
from samebits.data._rolling_digest import update_digest
from samebits.data._stages.batch import Batching
from samebits.data._stages.stage import Stage, State, Streamed
from samebits.data._workers.readers import Inline, draws_of, reader
from samebits.errors import InvalidArgumentError, PipelineError, PipelineMismatchError, UnimplementedError
from samebits.random import _int_keys as int_keys

SCHEMA = 1
"""Of saved states."""
_DIGITS = 4
"""Of a fingerprint, for each of its parts."""


class Resumable:
    """An iterable whose elements are a function of (stages, seed, epoch, number); it resumes after any."""

    _stage: Stage
    _options: Options
    _domain: str
    """Folded into the key of the seed."""
    _next: tuple[int, dict[str, Any] | None] = (0, None)
    """Epoch and state of the next `iter()`."""
    _live: ReadPosition | None = None
    """The position of the current iteration."""
    _newest: weakref.ref[PipelineIterator] | None = None
    """The iterator that the last `iter()` returned."""
    _resumed: PipelineIterator | None = None
    """The iterator that the last `load_state_dict` has set to its state."""
    _is_state = False
    """True for an object of a run, which commits its position: `iter()` in a step is then its next epoch."""

    def __iter__(self) -> PipelineIterator:
        if process.position is not None and not self._is_state:
            return self._iter_at(process.position, 0)
        if self._resumed is not None and self._live is self._resumed.position and self._live.is_read:
            self._next = (self._live.epoch + 1, None)  # the iterator that was there already has resumed
        (epoch, state), self._next = self._next, (self._next[0] + 1, None)
        iterator = self._iterate(self._key(), epoch)
        if state is not None:
            iterator.load_state_dict(state)
        self._live, self._resumed, self._newest = iterator.position, None, weakref.ref(iterator)
        return iterator

    def _iter_at(self, position: Position, start: int) -> PipelineIterator:
        """Returns the elements from `start` on of an iteration keyed by a run's position: it is no epoch."""
        key = int_keys.fold(self._key(), "inside", position.loop, position.step, *position.inside)
        stage = copy.copy(self._stage)
        stage.counts_epochs = False
        iterator = PipelineIterator(stage, key, 0, self._seed(), self._options)
        if start:
            iterator.skip_batches(start)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of the current iteration, or of the next epoch's start: small and JSON-able.

        Elements count when they are delivered, not when workers have made them ahead.
        """
        if self._live is not None and not self._live.exhausted:
            return self._live.state_dict()
        epoch, state = self._next
        return state or self._iterate(self._key(), epoch).state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes the next `iter()` after the element at which `state` was taken: O(1) if there is an index.

        An iterator that was made before, and not read from, is set there, too: `it = iter(loader)` may stand
        above the line that resumes.

        Raises:
            PipelineMismatchError: no such state, of a newer samebits, or of another pipeline; it says where.
        """
        probe = self._iterate(self._key(), 0)
        probe.load_state_dict(state)
        self._next, self._resumed = (probe.position.epoch, dict(state)), None
        newest = None if self._newest is None else self._newest()
        if newest is None or newest.position is not self._live or newest.position.is_read:
            self._live = None
            return
        newest.load_state_dict(state)
        self._resumed = newest

    @property
    def _rolling_digest(self) -> int:
        """The rolling digest of the elements that the current iteration has delivered; 0 if there is none."""
        return 0 if self._live is None else self._live.rolling_digest

    def _forget_iteration(self) -> None:
        """Ends an abandoned iteration: the position is again where the next `iter()` starts."""
        self._live = None

    def fingerprint(self) -> str:
        """Returns a hash of the stages and the seed; a saved position holds only for an equal one."""
        return fingerprint(self._stage, self._seed())

    def _iterate(self, key: Words, epoch: int) -> PipelineIterator:
        return PipelineIterator(self._stage, key, epoch, self._seed(), self._options)

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
        share = options.share()
        if share.world_size > 1:
            batching = _last_batching(self._stage)
            share.check(batching.batch_size)
            batching.share = share
        length = None if self._streamed else self._stage.length
        self.position = ReadPosition(stage, seed, options, epoch, length)

    def __next__(self) -> Any:
        element = self._next_element()
        if self._stage.has_digest:
            self.position.rolling_digest = update_digest(self.position.rolling_digest, element)
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
        if self._stage.has_digest:
            position.rolling_digest = update_digest(position.rolling_digest, ("skipped", count))

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
        chosen = reader(self._stage, self._draws, self._options)
        if not isinstance(chosen, Inline):
            self._closing = weakref.finalize(self, chosen.close)
        return chosen.read(self._stage, self.position.epoch, self.position.state)


def _last_batching(stage: Stage) -> Batching:
    """Returns the stage whose batches the ranks share: the last, unless a stage after it takes them apart."""
    while not isinstance(stage, Batching):
        if stage.kind not in ("map", "map_batches", "enumerate", "take", "skip", "repeat"):
            raise InvalidArgumentError(
                "a pipeline that several ranks read must end in batches, which they share; "
                f"{stage.describe()} comes after them. Batch last, or give each rank its own pipeline: "
                "with_options(rank=0, world_size=1) and shard()"
            )
        stage = stage.inputs[0]
    return stage


@dataclass
class ReadPosition:
    """The number of elements that an iteration has delivered in its epoch, and where the next one is."""

    stage: Stage
    seed: int
    options: Options
    epoch: int
    length: int | None
    """Elements of an epoch where each has a number, so that `state` is the next one's; else None."""
    delivered: int = 0
    state: State = None
    rolling_digest: int = 0
    exhausted: bool = False
    is_read: bool = False
    """True once an element was delivered from here."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last element delivered; see `PipelineIterator.state_dict`."""
        if (
            self.delivered
            and not self.exhausted
            and self.options.num_parallel_calls
            and not self.options.is_ordered()
        ):
            raise UnimplementedError(
                "PipelineIterator.state_dict: with deterministic=False elements come in order of completion, "
                "so that no position says which ones are still to come. Leave deterministic=False out where "
                "the state is saved, or save it between two epochs"
            )
        return {
            "schema": SCHEMA,
            "epoch": self.epoch,
            "delivered": self.delivered,
            "state": self.state,
            "digest": f"{self.rolling_digest:016x}",
            "pipeline": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Moves to a saved position.

        Raises:
            PipelineMismatchError: this is no such state, or of a newer samebits, or of another pipeline.
        """
        try:
            schema, epoch, delivered = int(state["schema"]), int(state["epoch"]), int(state["delivered"])
            inner, rolling, saved = (
                _check_state(state["state"]),
                int(state["digest"], 16),
                str(state["pipeline"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PipelineMismatchError(
                f"load_state_dict: not a state of a samebits.data.Pipeline or DataLoader ({error!r}): "
                f"{state!r:.200}"
            ) from None
        if schema > SCHEMA:
            raise PipelineMismatchError(
                f"load_state_dict: the state has schema {schema}, this samebits knows up to {SCHEMA}; use "
                "the samebits that wrote it, or a newer one"
            )
        _check_fingerprint(saved, self.stage, self.seed)
        if self.length is not None and (isinstance(inner, list) or (inner or 0) > self.length):
            raise PipelineMismatchError(
                f"load_state_dict: not a state of this pipeline, which has no element {inner}"
            )
        self.epoch, self.delivered, self.state, self.rolling_digest = epoch, delivered, inner, rolling
        self.exhausted = self.is_read = False

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.stage, self.seed)


def _check_state(state: Any) -> State:
    """Returns `state` if it is None, a count, or a list of such; raises `ValueError` otherwise."""
    if isinstance(state, list):
        return [_check_state(one) for one in state]
    if state is None or (isinstance(state, int) and state >= 0):
        return state
    raise ValueError(f"{state!r} is no position")


def fingerprint(stage: Stage, seed: int) -> str:
    """Returns 16 hexadecimal digits for the whole, then 4 for the seed and for each part of the stages."""
    parts = _parts(stage, seed)
    return "".join([xxhash.xxh3_64_hexdigest("\n".join(parts).encode()), *map(_short, parts)])


def _check_fingerprint(saved: str, stage: Stage, seed: int) -> None:
    """Raises `PipelineMismatchError` with the difference unless `saved` is this pipeline's fingerprint."""
    if saved == fingerprint(stage, seed):
        return
    theirs = [saved[at : at + _DIGITS] for at in range(16, len(saved), _DIGITS)]
    mine = _parts(stage, seed)
    for number, part in enumerate(mine):
        if number >= len(theirs):
            raise PipelineMismatchError(_message(f"{part} has been added since", len(theirs), len(mine)))
        if theirs[number] != _short(part):
            raise PipelineMismatchError(_message(f"{part} was different", len(theirs), len(mine)))
    raise PipelineMismatchError(_message(f"it had more stages after {mine[-1]}", len(theirs), len(mine)))


def _message(difference: str, theirs: int, mine: int) -> str:
    counts = "" if theirs == mine else f" (it had {theirs - 1} parts, this one has {mine - 1})"
    return (
        f"the position belongs to another pipeline: {difference}{counts}. Build it as it was, or start anew "
        "without the state"
    )


def _parts(stage: Stage, seed: int) -> list[str]:
    return [f"seed {seed}", *(part for one in stage.chain() for part in one.parts())]


def _short(part: str) -> str:
    return xxhash.xxh3_64_hexdigest(part.encode())[:_DIGITS]
