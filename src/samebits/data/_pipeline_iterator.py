"""The iteration of a pipeline: its position, and how it resumes from one."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from samebits._context import Words
from samebits.data._calls.process_generators import Draws
from samebits.data._options import Options
from samebits.data._rolling_digest import update_digest
from samebits.data._saved_position import ReadPosition
from samebits.data._stages.batch_stages import Batching
from samebits.data._stages.stage import Stage, State, Streamed
from samebits.data._workers.readers import Inline, draws_of, reader
from samebits.errors import InvalidArgumentError, PipelineError


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

        `delivered` counts the elements of this epoch; `digest` is a rolling digest of them, so a resumed iteration
        ends with the same digest as an uninterrupted one.

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
        """Steps over the next `count` elements: without computing them where they have numbers, else by reading them.

        They count as delivered; the rolling digest records that they were skipped.
        """
        if count < 0:
            raise InvalidArgumentError(f"PipelineIterator.skip_batches(count={count}): count is at least 0")
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
    """Returns the stage whose batches the ranks share: the last one, unless a stage after it takes them apart."""
    while not isinstance(stage, Batching):
        if stage.kind not in ("map", "map_batches", "enumerate", "take", "skip", "repeat"):
            raise InvalidArgumentError(
                f"a pipeline that several ranks read must end in batches, which they share; {stage.describe()} comes after them. "
                "Batch last, or give each rank its own pipeline: with_options(rank=0, world_size=1) and shard()"
            )
        stage = stage.inputs[0]
    return stage
