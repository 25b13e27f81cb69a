"""The iteration of a pipeline: where it is, and how it goes on from there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from samebits.context import Words
from samebits.data.engine.inline import Inline
from samebits.data.engine.parallel import Parallel
from samebits.data.scope import Draws
from samebits.data.stage import Stage, State
from samebits.errors import PipelineMismatchError

SCHEMA = 1


class PipelineIterator(Iterator[Any]):
    """The elements of one epoch of a pipeline, from any of them on."""

    def __init__(
        self, stage: Stage, key: Words, epoch: int, fingerprint: str, *, num_workers: int = 0
    ) -> None:
        self._stage = stage.bind(key)
        self._epoch = epoch
        self._fingerprint = fingerprint
        self._delivered = 0
        self._state: State = None
        self._reader = (
            Parallel(self._stage, Draws(), num_workers=num_workers, ahead=4 * num_workers)
            if num_workers
            else Inline(Draws())
        )
        self._elements: Iterator[tuple[Any, State]] | None = None

    def __next__(self) -> Any:
        if self._elements is None:
            self._elements = iter(self._reader.read(self._stage, self._epoch, self._state))
        element, self._state = next(self._elements)
        self._delivered += 1
        return element

    def state_dict(self) -> dict[str, Any]:
        """The position behind the last element that was handed out: small, JSON-able, free of worker numbers."""
        return {
            "schema": SCHEMA,
            "epoch": self._epoch,
            "delivered": self._delivered,
            "state": self._state,
            "pipeline": self._fingerprint,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on behind the element at which `state` was taken.

        Raises:
            PipelineMismatchError: it is no such state, or one of another pipeline.
        """
        if state.get("pipeline") != self._fingerprint:
            raise PipelineMismatchError(
                "PipelineIterator.load_state_dict: the state belongs to another pipeline"
            )
        self._epoch, self._delivered, self._state = state["epoch"], state["delivered"], state["state"]
        self._elements = None
