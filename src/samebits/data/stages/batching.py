"""Stages that put elements together: `batch` and `padded_batch`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from typing_extensions import override

from samebits.data.function import Function
from samebits.data.stage import Addressed, Ordinals, Reader, Stage, State, Streamed
from samebits.errors import InvalidArgumentError


class _Batching(Stage):
    def __init__(
        self, stage: Stage, batch_size: int, collate: Function, *, drop_remainder: bool, kind: str = "batch"
    ) -> None:
        super().__init__(stage)
        self.kind = kind
        if batch_size < 1:
            raise InvalidArgumentError(f"Pipeline.batch(batch_size={batch_size}): batch_size is at least 1")
        self.batch_size = batch_size
        self.collate = collate
        self.drop_remainder = drop_remainder

    @override
    def parameters(self) -> dict[str, Any]:
        return {
            "batch_size": self.batch_size,
            "drop_remainder": self.drop_remainder,
            "collate": self.collate.name,
        }

    @property
    @override
    def length(self) -> int | None:
        inner = self.inputs[0].length
        if inner is None:
            return None
        return inner // self.batch_size if self.drop_remainder else -(-inner // self.batch_size)


class Batch(_Batching, Addressed):
    """Batches of an addressed stage: a batch is addressed as well, so that workers make whole batches."""

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        inner, count = self.inputs[0], self.length
        batches = []
        for ordinal in ordinals.tolist():
            repetition, number = divmod(ordinal, count)
            first = number * self.batch_size
            last = min(first + self.batch_size, inner.length)
            rows = inner.fetch(repetition * inner.length + np.arange(first, last))
            batches.append(self.collate.over(self.key, (ordinal,), (rows,))[0])
        return batches


class StreamedBatch(_Batching, Streamed):
    """Batches of a stream. State: [the input's, batches made]; it holds nothing between two batches."""

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        start, number = state or (None, 0)
        rows: list[Any] = []
        behind = start
        for element, behind in reader.read(self.inputs[0], repetition, start):
            rows.append(element)
            if len(rows) == self.batch_size:
                yield self._collated(rows, repetition, number), [behind, number + 1]
                rows, number = [], number + 1
        if rows and not self.drop_remainder:
            yield self._collated(rows, repetition, number), [behind, number + 1]

    def _collated(self, rows: list[Any], repetition: int, number: int) -> Any:
        return self.collate.over(self.key, [(repetition, number)], [rows])[0]


def batch(
    stage: Stage, batch_size: int, collate: Function, *, drop_remainder: bool, kind: str = "batch"
) -> Stage:
    """The batches of a stage."""
    made = Batch if isinstance(stage, Addressed) else StreamedBatch
    return made(stage, batch_size, collate, drop_remainder=drop_remainder, kind=kind)
