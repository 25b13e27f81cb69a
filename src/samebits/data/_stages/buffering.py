"""Stages that hold elements back: a shuffle buffer over a stream, `bucket_by_length`, `pack`.

For every element held, their state has the input's state before it: a resume reads those elements again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from samebits.data._calls.user_function import Function
from samebits.data._stages.shuffle_repeat import slot_at
from samebits.data._stages.stage import Reader, Stage, State, Streamed
from samebits.errors import PipelineError
from samebits.random import _int_keys as int_keys

HeldElement = tuple[Any, State]
"""An element, and the input's state before it."""


class _BufferingStage(Streamed):
    """A stage that holds elements of its single input."""

    @property
    @override
    def length(self) -> int | None:
        return None

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


class StreamShuffle(_BufferingStage):
    """tf.data's shuffle buffer. State: [the input's, elements delivered, references of the elements held]."""

    kind = "shuffle"
    draws = True

    def __init__(self, stage: Stage, buffer_size: int, *, reshuffle_each_epoch: bool) -> None:
        super().__init__(stage)
        self.buffer_size = buffer_size
        self.reshuffle = reshuffle_each_epoch

    @override
    def parameters(self) -> dict[str, Any]:
        return {"buffer_size": self.buffer_size, "reshuffle_each_epoch": self.reshuffle}

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        before, number, references = state or (None, 0, [])
        key = int_keys.fold(self.key, repetition if self.reshuffle else 0)
        held = self.reread(reader, repetition, references)
        arriving = self.read_input(reader, repetition, before)
        while True:
            for one, after in arriving:
                held.append(one)
                before = after
                if len(held) == self.buffer_size:
                    break
            if not held:
                return
            slot = slot_at(*key, number, len(held))
            held[slot], held[-1] = held[-1], held[slot]
            element, _ = held.pop()
            number += 1
            yield element, [before, number, [reference for _, reference in held]]


class Bucket(_BufferingStage):
    """Batches of elements of similar length. State: [the input's, elements read, batches made, references]"""

    kind = "bucket_by_length"

    def __init__(
        self, stage: Stage, measure: Function, boundaries: Sequence[int], sizes: Sequence[int], collate: Function,
        *, drop_remainder: bool,
    ) -> None:  # fmt: skip
        super().__init__(stage)
        self.measure, self.collate, self.drop_remainder = measure, collate, drop_remainder
        self.boundaries, self.sizes = list(boundaries), list(sizes)

    @override
    def parameters(self) -> dict[str, Any]:
        return {
            "function": self.measure.name,
            "boundaries": str(self.boundaries),
            "batch_sizes": str(self.sizes),
            "collate": self.collate.name,
            "drop_remainder": self.drop_remainder,
        }

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        before, seen, number, references = state or (None, 0, 0, [[]] * len(self.sizes))
        buckets = [self.reread(reader, repetition, each) for each in references]
        for one, after in self.read_input(reader, repetition, before):
            length = self.measure.call_each(self.key, [(repetition, seen)], [one[0]])[0]
            before, seen = after, seen + 1
            bucket = buckets[which := int(np.searchsorted(self.boundaries, length, side="right"))]
            bucket.append(one)
            if len(bucket) == self.sizes[which]:
                batch = self._collate_batch(repetition, number, bucket)
                buckets[which], number = [], number + 1
                yield batch, [before, seen, number, _references(buckets)]
        for which, bucket in enumerate(buckets):
            if bucket and not self.drop_remainder:
                batch = self._collate_batch(repetition, number, bucket)
                buckets[which], number = [], number + 1
                yield batch, [before, seen, number, _references(buckets)]

    def _collate_batch(self, repetition: int, number: int, bucket: list[HeldElement]) -> Any:
        return self.collate.call_each(self.key, [(repetition, number)], [[element for element, _ in bucket]])[
            0
        ]


class Pack(_BufferingStage):
    """Sequences side by side in rows of one length (first fit). State: [the input's, references in each open row]."""

    kind = "pack"

    def __init__(self, stage: Stage, row_length: int, open_rows: int) -> None:
        super().__init__(stage)
        self.row_length, self.open_rows = row_length, open_rows

    @override
    def parameters(self) -> dict[str, Any]:
        return {"length": self.row_length, "open_rows": self.open_rows}

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        before, references = state or (None, [])
        rows = [self.reread(reader, repetition, each) for each in references]
        for one, after in self.read_input(reader, repetition, before):
            size = self._size(one[0], before)
            before = after
            row = next((row for row in rows if self._filled_length(row) + size <= self.row_length), None)
            full = None
            if row is None:
                full = rows.pop(0) if len(rows) == self.open_rows else None
                rows.append([one])
            else:
                row.append(one)
            if full is not None:
                yield self._pack_row(full), [before, _references(rows)]
        while rows:
            full = rows.pop(0)
            yield self._pack_row(full), [before, _references(rows)]

    def _size(self, element: Any, place: State) -> int:
        sizes = {len(part) for part in _fields(element).values()}
        if len(sizes) != 1:
            raise PipelineError(
                f"Pipeline.pack: the element after {place} has fields of lengths {sorted(sizes)}; pack takes one sequence, "
                "or a dict of sequences of one length"
            )
        size = sizes.pop()
        if size > self.row_length:
            raise PipelineError(
                f"Pipeline.pack(length={self.row_length}): the element after {place} has length {size}. Cut it before: "
                f"flat_map(lambda tokens: tokens.split({self.row_length})), or map(lambda tokens: tokens[:{self.row_length}])"
            )
        return size

    def _filled_length(self, row: list[HeldElement]) -> int:
        return sum(len(next(iter(_fields(element).values()))) for element, _ in row)

    def _pack_row(self, row: list[HeldElement]) -> dict[str, torch.Tensor]:
        parts = [
            {name: torch.as_tensor(part) for name, part in _fields(element).items()} for element, _ in row
        ]
        sizes = [len(next(iter(part.values()))) for part in parts]
        packed = {name: self._fill_row(torch.cat([part[name] for part in parts])) for name in parts[0]}
        packed["segment_ids"] = self._fill_row(
            torch.repeat_interleave(torch.arange(1, len(row) + 1), torch.tensor(sizes))
        )
        packed["positions"] = self._fill_row(torch.cat([torch.arange(size) for size in sizes]))
        return packed

    def _fill_row(self, values: torch.Tensor) -> torch.Tensor:
        row = values.new_zeros(self.row_length, *values.shape[1:])
        row[: len(values)] = values
        return row


def _fields(element: Any) -> dict[str, Any]:
    return element if isinstance(element, dict) else {"tokens": element}


def _references(groups: list[list[HeldElement]]) -> list[list[State]]:
    return [[before for _, before in group] for group in groups]
