"""Stages that put elements together: `batch`, `padded_batch`, `bucket_by_length` and `pack`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from samebits.data._calls.user_function import Function, Place
from samebits.data._options import OwnBatches, OwnShards, Share
from samebits.data._stages.stage import (
    Addressed,
    Dividing,
    Following,
    HeldElement,
    HoldingStream,
    Ordinals,
    Reader,
    Stage,
    State,
    Streamed,
)
from samebits.data._workers.results import use_offered_memory
from samebits.errors import InvalidArgumentError, PipelineError
from samebits.random import _int_keys as int_keys


class Batching(Dividing):
    """Batches of `batch_size` elements; `share` gives the rows of each that this process computes."""

    share = Share()

    def __init__(
        self, stage: Stage, batch_size: int, collate: Function, *, drop_remainder: bool, kind: str = "batch"
    ) -> None:
        parameters = {
            "batch_size": batch_size, "drop_remainder": drop_remainder, "collate": collate.name
        }  # fmt: skip
        super().__init__(stage, parameters=parameters, functions=[collate])
        self.kind = kind
        self.batch_size = batch_size
        self.collate = collate
        self.drop_remainder = drop_remainder

    @override
    def sizes(self) -> list[int]:
        length = self.inputs[0].length
        rest = 0 if length is None or self.drop_remainder else length % self.batch_size
        return [self.batch_size, rest] if rest else [self.batch_size]

    def is_kept(self, rows: int) -> bool:
        """Returns True if a last batch of `rows` rows is kept; the same on all ranks."""
        if rows == 0 or self.drop_remainder:
            return False
        return self.share.remainder != "drop" or rows >= self.share.world_size

    def places(self, place: Place, count: int, shard: int | None = None) -> Sequence[Place]:
        """Returns the places in the input of this process's, or a shard's, `count` rows of a batch."""
        first, step = self.share.rank, self.share.world_size
        if shard is not None and self.shards is not None:
            first, step = shard, self.shards.count
        rows = range(first, first + count * step, step)
        if isinstance(place, tuple):
            repetition, number = place
            return [(repetition, number * self.batch_size + row) for row in rows]
        assert self.length is not None
        repetition, number = divmod(place, self.length)
        first = repetition * self.inputs[0].length + number * self.batch_size
        return [first + row for row in rows]

    def collate_shards(self, place: Place, elements: Sequence[Any], rows: list[range]) -> OwnBatches:
        """Returns the batches of the own shards, from the elements of all their rows in this order."""
        assert self.shards is not None
        batches, each = OwnBatches(), len(rows[0])
        for position, number in enumerate(self.shards.numbers):
            own = list(elements[position * each : (position + 1) * each])
            batches.append(self.collate_rows(place, own, number))
        return batches

    def collate_rows(self, place: Place, elements: list[Any], shard: int | None = None) -> Any:
        """Returns the batch of these elements, of all rows or of a shard's.

        Raises PipelineError for elements that cannot be put together; it names the first unlike the others.
        """
        try:
            key = self.key if shard is None else int_keys.fold(self.key, "shard", shard)
            return self.collate.call_each(key, [place], [elements])[0]
        except PipelineError as error:
            kinds = [_element_kind(element) for element in elements]
            odd = next((row for row, kind in enumerate(kinds) if kind != kinds[0]), None)
            if odd is None:
                raise
            raise PipelineError(
                f"Pipeline.{self.describe()}: element {self.places(place, len(elements), shard)[odd]} is "
                f"{kinds[odd]}, those before it are {kinds[0]}. Bring elements to one shape with map before "
                "it, use padded_batch, or your own collate"
            ) from error


_PASSING = ("map", "map_batches", "take", "skip", "repeat")


def batching_of(stage: Stage, shards: OwnShards | None = None) -> Any:
    """Returns the stage whose batches the ranks share: the last, unless a stage after it takes them apart."""
    while not isinstance(stage, Dividing):
        if stage.kind not in _PASSING and (stage.kind != "enumerate" or shards is not None):
            cure = (
                "Batch last, or give each rank its own pipeline: with_options(rank=0, world_size=1) and "
                "shard()"
                if shards is None
                else f"Batch last; after it only {', '.join(_PASSING)} may follow"
            )
            what = "several ranks read" if shards is None else f"run.steps(shards={shards.count}) reads"
            raise InvalidArgumentError(
                f"a pipeline that {what} must end in batches, which they share; {stage.describe()} comes "
                f"after them. {cure}"
            )
        stage = stage.inputs[0]
    return stage


def _element_kind(element: Any) -> str:
    """Returns a text of what elements of one batch must share."""
    if isinstance(element, dict):
        return f"{{{', '.join(f'{name}: {_element_kind(value)}' for name, value in element.items())}}}"
    if isinstance(element, tuple | list):
        return f"({', '.join(map(_element_kind, element))})"
    shape = getattr(element, "shape", None)
    if shape is None:
        return type(element).__name__
    return f"{type(element).__name__} of {element.dtype} and shape {tuple(shape)}"


class Batch(Batching, Following, Addressed):
    """Batches of an addressed stage: a batch is addressed as well, so workers compute whole batches."""

    makes_batches = True

    @property
    @override
    def length(self) -> int:
        full, rest = divmod(self.inputs[0].length, self.batch_size)
        return full + self.is_kept(rest)

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        batches = []
        for ordinal in ordinals.tolist():
            elements = self.inputs[0].fetch(self.rows(ordinal))
            with use_offered_memory(self):
                if self.shards is None:
                    batches.append(self.collate_rows(ordinal, elements))
                else:
                    rows = self.rows_of_shards(self._size(ordinal))
                    batches.append(self.collate_shards(ordinal, elements, rows))
        return batches

    @override
    def needed(self, ordinals: Ordinals) -> Ordinals:
        return np.concatenate([self.rows(ordinal) for ordinal in ordinals.tolist()])

    def rows(self, ordinal: int) -> Ordinals:
        """Returns the input's ordinals that this process makes a batch of."""
        inner, count = self._lengths
        repetition, number = divmod(ordinal, count)
        size = self._size(ordinal)
        rows = self.share.rows(size) if self.shards is None else np.concatenate(self.rows_of_shards(size))
        rows += repetition * inner + number * self.batch_size
        return rows

    def _size(self, ordinal: int) -> int:
        """Returns the number of rows of a batch, of all processes."""
        inner, count = self._lengths
        return min(self.batch_size, inner - ordinal % count * self.batch_size)

    @cached_property
    def _lengths(self) -> tuple[int, int]:
        """Elements and batches of one repetition, cached: all stages below take 10 us to compute them."""
        return self.inputs[0].length, self.length


class StreamBatch(Batching, Streamed):
    """Batches of a stream. State: [the input's, batches made]; nothing is held between two batches."""

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        after, number = state or (None, 0)
        elements: list[Any] = []
        for element, after in reader.read(self.inputs[0], repetition, after):  # noqa: B020
            elements.append(element)
            if len(elements) == self.batch_size:
                yield self._collate_batch(elements, repetition, number), [after, number + 1]
                elements, number = [], number + 1
        if self.is_kept(len(elements)):
            yield self._collate_batch(elements, repetition, number), [after, number + 1]

    def _collate_batch(self, elements: list[Any], repetition: int, number: int) -> Any:
        if self.shards is not None:
            rows = self.rows_of_shards(len(elements))
            of_shards = [elements[row] for own in rows for row in own]
            return self.collate_shards((repetition, number), of_shards, rows)
        own = [elements[row] for row in self.share.rows(len(elements)).tolist()]
        return self.collate_rows((repetition, number), own)


class Bucket(HoldingStream):
    """Batches of elements of similar length. State: [the input's, elements read, batches made, references]"""

    kind = "bucket_by_length"

    def __init__(
        self, stage: Stage, measure: Function, boundaries: Sequence[int], sizes: Sequence[int],
        collate: Function, *, drop_remainder: bool
    ) -> None:  # fmt: skip
        self.measure, self.collate, self.drop_remainder = measure, collate, drop_remainder
        self.boundaries, self.sizes = list(boundaries), list(sizes)
        parameters = {
            "function": measure.name,
            "boundaries": str(self.boundaries),
            "batch_sizes": str(self.sizes),
            "collate": collate.name,
            "drop_remainder": drop_remainder,
        }
        super().__init__(stage, parameters=parameters, functions=[measure, collate])

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


class Pack(HoldingStream):
    """Sequences side by side in rows of one length (first fit). State: [the input's, those of open rows]."""

    kind = "pack"

    def __init__(self, stage: Stage, row_length: int, open_rows: int) -> None:
        super().__init__(stage, parameters={"length": row_length, "open_rows": open_rows})
        self.row_length, self.open_rows = row_length, open_rows

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
                f"Pipeline.pack: the element after {place} has fields of lengths {sorted(sizes)}; pack takes "
                "one sequence, or a dict of sequences of one length"
            )
        size = sizes.pop()
        if size > self.row_length:
            raise PipelineError(
                f"Pipeline.pack(length={self.row_length}): the element after {place} has length {size}. Cut "
                f"it before: flat_map(lambda tokens: tokens.split({self.row_length})), or map(lambda tokens: "
                f"tokens[:{self.row_length}])"
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
