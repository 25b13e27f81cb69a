"""The iteration of a pipeline: its position, and how it resumes from one."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from samebits._context import Words
from samebits.data import _fingerprint as fingerprint
from samebits.data._calls.process_generators import Draws
from samebits.data._options import Options
from samebits.data._rolling_digest import update_digest
from samebits.data._stages.batch_stages import Batching
from samebits.data._stages.stage import Addressed, Stage, State, Streamed
from samebits.data._workers.executor_choice import draws_of, reader
from samebits.data._workers.inline import Inline
from samebits.errors import InvalidArgumentError, PipelineError, PipelineMismatchError, UnimplementedError

SCHEMA = 1


class PipelineIterator(Iterator[Any]):
    """The elements of one epoch of a pipeline, from any of them on."""

    def __init__(self, stage: Stage, key: Words, epoch: int, seed: int, options: Options) -> None:
        self._definition, self._seed = stage, seed
        self._stage = stage.bind(key)
        self._streamed = isinstance(stage, Streamed)
        self._options = options
        self._placement = options.placement()
        self._draws = Draws()
        self._elements: Iterator[tuple[Any, State]] | None = None
        self._state: State = None
        self.rolling_digest = 0
        self.delivered = 0
        self.epoch = epoch
        self.exhausted = False
        share = options.share()
        if share.world_size > 1:
            batching = _last_batching(self._stage)
            share.check(batching.batch_size)
            batching.share = share

    def __next__(self) -> Any:
        element = self._next_element()
        self.rolling_digest = update_digest(self.rolling_digest, element)
        return element if self._placement is None else self._placement(element)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position after the last element delivered: small, JSON-able, free of worker numbers.

        `delivered` counts the elements of this epoch; `digest` is a rolling digest of them, so a resumed iteration
        ends with the same digest as an uninterrupted one.

        Raises:
            UnimplementedError: elements come in order of completion, so no position says which ones came.
        """
        if (
            self.delivered
            and not self.exhausted
            and self._options.num_parallel_calls
            and not self._options.is_ordered()
        ):
            raise UnimplementedError(
                "PipelineIterator.state_dict: with deterministic=False elements come in order of completion, so that "
                "no position says which ones are still to come. Leave deterministic=False out where the state is saved, or "
                "save it between two epochs"
            )
        return {
            "schema": SCHEMA,
            "epoch": self.epoch,
            "delivered": self.delivered,
            "state": self._state,
            "digest": f"{self.rolling_digest:016x}",
            "pipeline": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes after the element at which `state` was taken.

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
                f"load_state_dict: not a state of a samebits.data.Pipeline ({error!r}): {state!r:.200}"
            ) from None
        if schema > SCHEMA:
            raise PipelineMismatchError(
                f"load_state_dict: the state has schema {schema}, this samebits knows up to {SCHEMA}; use the samebits that "
                "wrote it, or a newer one"
            )
        fingerprint.check(saved, self._definition, self._seed)
        if isinstance(self._stage, Addressed) and (
            isinstance(inner, list) or (inner or 0) > self._stage.length
        ):
            raise PipelineMismatchError(
                f"load_state_dict: not a state of this pipeline, which has no element {inner}"
            )
        self.close()
        self.epoch, self.delivered, self._state, self.rolling_digest = epoch, delivered, inner, rolling
        self.exhausted = False

    def skip_batches(self, count: int) -> None:
        """Steps over the next `count` elements: without computing them where they have numbers, else by reading them.

        They count as delivered; the rolling digest records that they were skipped.
        """
        if count < 0:
            raise InvalidArgumentError(f"PipelineIterator.skip_batches(count={count}): count is at least 0")
        if isinstance(self._stage, Addressed):
            self.close()
            last = min((self._state or 0) + count, self._stage.length)
            self.delivered += last - (self._state or 0)
            self._state = last
        else:
            for _ in range(count):
                self._next_element()
        self.rolling_digest = update_digest(self.rolling_digest, ("skipped", count))

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint.fingerprint(self._definition, self._seed)

    def _next_element(self) -> Any:
        if self.exhausted:
            raise StopIteration
        if self._elements is None:
            self._elements = self._begin()
        try:
            if self._streamed:
                with self._draws.fill_each_call():
                    element, self._state = next(self._elements)
            else:
                element, self._state = next(self._elements)
        except StopIteration:
            self.exhausted = True
            self.close()
            raise
        except PipelineError as error:
            self.close()
            raise error.with_traceback(None) from error.__cause__  # which has the user's function
        except BaseException:
            self.close()  # so that the next call raises this error again, and does not end the epoch
            raise
        self.delivered += 1
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
        return chosen.read(self._stage, self.epoch, self._state)


def _check_state(state: Any) -> State:
    """Returns `state` if it is None, a count, or a list of such; raises `ValueError` otherwise."""
    if isinstance(state, list):
        return [_check_state(one) for one in state]
    if state is None or (isinstance(state, int) and state >= 0):
        return state
    raise ValueError(f"{state!r} is no position")


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
