"""The iteration of a pipeline: where it is, and how it goes on from there."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from samebits.context import Words
from samebits.data.engine.inline import Inline
from samebits.data.engine.parallel import Parallel
from samebits.data.fingerprint import short
from samebits.data.options import Options
from samebits.data.scope import Draws
from samebits.data.stage import Stage, State, Streamed
from samebits.errors import PipelineMismatchError

SCHEMA = 1


class PipelineIterator(Iterator[Any]):
    """The elements of one epoch of a pipeline, from any of them on."""

    def __init__(
        self, stage: Stage, key: Words, epoch: int, fingerprint: dict[str, Any], options: Options
    ) -> None:
        self._stage = stage.bind(key)
        self._options = options
        self._fingerprint = fingerprint
        self._draws = Draws()
        self._elements: Iterator[tuple[Any, State]] | None = None
        self._state: State = None
        self._delivered = 0
        self.epoch = epoch
        self.exhausted = False

    def __next__(self) -> Any:
        if self._elements is None:
            self._elements = self._begin()
        with self._draws.guarded() if isinstance(self._stage, Streamed) else nullcontext():
            try:
                element, self._state = next(self._elements)
            except StopIteration:
                self.exhausted = True
                self.close()
                raise
        self._delivered += 1
        return element

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last element that was handed out: small, JSON-able, free of worker numbers."""
        return {
            "schema": SCHEMA,
            "epoch": self.epoch,
            "delivered": self._delivered,
            "state": self._state,
            "pipeline": short(self._fingerprint),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on behind the element at which `state` was taken.

        Raises:
            PipelineMismatchError: it is no such state, or one of another pipeline.
        """
        if state.get("pipeline") != short(self._fingerprint):
            raise PipelineMismatchError(
                "PipelineIterator.load_state_dict: the position belongs to another pipeline"
            )
        self.epoch, self._delivered, self._state = state["epoch"], state["delivered"], state["state"]
        self.close()

    def close(self) -> None:
        """Ends the workers; the next element starts them again."""
        self._elements = None
        if (closing := getattr(self, "_closing", None)) is not None:
            closing()

    def _begin(self) -> Iterator[tuple[Any, State]]:
        count = self._options.num_parallel_calls
        if count == "auto":
            count = (
                os.process_cpu_count() if hasattr(os, "process_cpu_count") else len(os.sched_getaffinity(0))
            )
        if not count:
            return Inline(self._draws).read(self._stage, self.epoch, self._state)
        ahead = self._options.prefetch or 2 * count
        reader = Parallel(self._stage, self._draws, num_workers=count, ahead=ahead)
        self._closing = weakref.finalize(self, reader.close)
        return reader.read(self._stage, self.epoch, self._state)
