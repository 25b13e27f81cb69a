"""The epochs of a pipeline or a loader, and the position where the next `iter()` starts."""

from __future__ import annotations

import weakref
from typing import Any

from samebits._context import Position, Words, process
from samebits.data._fingerprint import fingerprint
from samebits.data._options import Options
from samebits.data._pipeline_iterator import PipelineIterator
from samebits.data._saved_position import ReadPosition
from samebits.data._stages.stage import Stage
from samebits.random import _int_keys as int_keys


class Resumable:
    """An iterable whose elements are a function of (stages, seed, epoch, number), and that resumes after any of them."""

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
    """True while it is an object of a run, which commits its position: then `iter()` in the body of a step is its next epoch."""

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
        """Returns the elements from `start` on of an iteration keyed by a position inside a run; no epoch is counted."""
        key = int_keys.fold(self._key(), "inside", position.loop, position.step, *position.inside)
        iterator = PipelineIterator(self._stage.keyed_by_position(), key, 0, self._seed(), self._options)
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
        """Resumes the next `iter()` after the element at which `state` was taken, in O(1) where there is an index.

        An iterator that was made before, and not read from, is set there, too: `it = iter(loader)` may stand
        above the line that resumes.

        Raises:
            PipelineMismatchError: this is no such state, or of a newer samebits, or of another pipeline (the message says
                where it differs).
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
        """Returns the rolling digest of the elements that the current iteration has delivered; 0 if there is none."""
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
