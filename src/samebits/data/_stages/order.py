"""Stages that change the order or the number of elements, by index and by stream.

They are `shuffle`, `repeat`, `take`, `skip` and `shard`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from samebits._context import Words
from samebits._native import kernel
from samebits.data._stages import stage as stages
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.random import permute_index
from samebits.random._cpu.philox import block
from samebits.random._draws import feistel

_REPETITIONS = 1 << 20
"""Room for the repetitions of an input in one repetition of an endless `repeat` of a stream."""


class _Renumbered(stages.Following, stages.Addressed):
    """Element o is the input's element `needed(o)`."""

    @override
    def fetch(self, ordinals: stages.Ordinals) -> list[Any]:
        return self.inputs[0].fetch(self.needed(ordinals))


class _Shuffling(stages.Stage):
    """A separate order for each repetition, or one for all of them; drawn from a buffer (0: from all)."""

    kind = "shuffle"
    draws = True

    def __init__(self, stage: stages.Stage, buffer_size: int, *, reshuffle_each_epoch: bool) -> None:
        buffer = {"buffer_size": buffer_size} if buffer_size else {}
        super().__init__(stage, parameters={**buffer, "reshuffle_each_epoch": reshuffle_each_epoch})
        self.buffer_size, self.reshuffle = buffer_size, reshuffle_each_epoch

    def order_key(self, repetition: int) -> Words:
        return int_keys.fold(self.key, repetition if self.reshuffle else 0)


class _ShuffledOrdinals(_Shuffling, _Renumbered, stages.SameLength):
    """The input's ordinals in another order."""

    @override
    def needed(self, ordinals: stages.Ordinals) -> stages.Ordinals:
        length = self.length
        repetitions, index = np.divmod(ordinals, length)
        first = repetitions[0]
        if (repetitions == first).all():
            return first * length + self.order(int(first), index)
        result = np.empty_like(ordinals)
        for repetition in np.unique(repetitions).tolist():
            where = repetitions == repetition
            result[where] = repetition * length + self.order(repetition, index[where])
        return result

    @abstractmethod
    def order(self, repetition: int, index: stages.Ordinals) -> stages.Ordinals:
        """Returns the input's index at each of these places of a repetition."""


class Shuffle(_ShuffledOrdinals):
    """A keyed permutation of each repetition: O(1) memory."""

    def __init__(self, stage: stages.Addressed, *, reshuffle_each_epoch: bool) -> None:
        super().__init__(stage, 0, reshuffle_each_epoch=reshuffle_each_epoch)
        if stage.endless:
            raise InvalidArgumentError(
                f"Pipeline.shuffle(): {stage.describe()} does not end, so that there is no order of all its "
                "elements; shuffle before repeat, or give shuffle a buffer_size"
            )

    @override
    def order(self, repetition: int, index: stages.Ordinals) -> stages.Ordinals:
        return permute_index(self.order_key(repetition), torch.from_numpy(index), self.length).numpy()


class BufferShuffle(_ShuffledOrdinals):
    """tf.data's shuffle buffer, of ordinals instead of elements.

    Element t takes the content of slot(t), and the next element of the input replaces it; slot(t) is a
    function of (key, t). So the content of a slot at t is the input's element `buffer_size + u` for the last
    u < t with slot(u) the same: the buffer is rebuilt for any t by reading backwards, about `buffer_size`
    log(`buffer_size`) slots. When the input has ended, the slots are emptied in a keyed order.
    """

    _now: tuple[int, int, np.ndarray] | None = None
    """A cache: a repetition, t, and the content of the slots at t."""

    @override
    def order(self, repetition: int, index: stages.Ordinals) -> stages.Ordinals:
        key = self.order_key(repetition)
        size = min(self.buffer_size, self.length)
        steady = self.length - size  # from there on the input has ended
        result = np.empty_like(index)
        ends = np.flatnonzero(np.diff(index) != 1) + 1
        for run in np.split(np.arange(index.size), ends):  # neighbours share one pass over the buffer
            first, count = int(index[run[0]]), run.size
            is_filling = max(0, min(count, steady - first))
            slots = self._slots_at(repetition, key, min(first, steady), size)
            emptied = np.empty(is_filling, np.int64)
            _emit(*key, min(first, steady), slots, emptied)
            self._now = (repetition, min(first, steady) + is_filling, slots)
            last = np.empty(0, np.int64)
            if first + count > steady:
                rest = max(first, steady) - steady, first + count - steady
                last = feistel.permute_indices(int_keys.fold(key, "end"), *rest, size)
            result[run] = np.concatenate([emptied, slots[last]])
        return result

    def _slots_at(self, repetition: int, key: Words, t: int, size: int) -> np.ndarray:
        """Returns the content of the slots at t; computed forward from the cached ones if they are near."""
        if self._now is not None:
            known, then, slots = self._now
            if known == repetition and 0 <= t - then <= 16 * size:
                _emit(*key, then, slots, np.empty(t - then, np.int64))
                return slots
        slots = np.full(size, -1, np.int64)
        _rebuild(*key, t, slots)
        return slots


@kernel("void(uint64, uint64, int64, int64[::1], int64[::1])")
def _emit(seed: Any, offset: Any, t: Any, slots: Any, emptied: Any) -> None:
    """Writes the elements t, t + 1, ...; moves `slots` on behind them."""
    for number in range(emptied.size):
        slot = slot_at(seed, offset, t + number, slots.size)
        emptied[number] = slots[slot]
        slots[slot] = slots.size + t + number


@kernel("void(uint64, uint64, int64, int64[::1])")
def _rebuild(seed: Any, offset: Any, t: Any, slots: Any) -> None:
    """Fills `slots` (all -1) with their content at t."""
    missing = slots.size
    while missing > 0 and t > 0:
        t -= 1
        slot = slot_at(seed, offset, t, slots.size)
        if slots[slot] < 0:
            slots[slot] = slots.size + t
            missing -= 1
    for slot in range(slots.size):
        if slots[slot] < 0:
            slots[slot] = slot


@kernel("int64(uint64, uint64, int64, int64)")
def slot_at(seed: Any, offset: Any, t: Any, size: Any) -> Any:
    """Returns slot(t): a 32-bit word times the size, the high half; the bias is below size / 2**32."""
    w0, _, _, _ = block(seed, offset + np.uint64(t))
    return np.int64((w0 * np.uint64(size)) >> np.uint64(32))


class StreamShuffle(_Shuffling, stages.HoldingStream):
    """tf.data's shuffle buffer. State: [the input's, elements delivered, references of the elements held]."""

    @override
    def stream(
        self, reader: stages.Reader, repetition: int, state: stages.State
    ) -> Iterator[tuple[Any, stages.State]]:
        before, number, references = state or (None, 0, [])
        key = self.order_key(repetition)
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


class _Repeating(stages.Stage):
    """The repetitions of the input, one after another."""

    kind = "repeat"

    def __init__(self, stage: stages.Stage, count: int | None) -> None:
        super().__init__(stage, parameters={"count": count})
        self.count = count
        self.endless = count is None or stage.endless


class Repeat(_Repeating, stages.SameOrdinals, _Renumbered):
    """The repetitions of an addressed stage: ordinals count through them."""

    @property
    @override
    def length(self) -> int:
        inner = self.inputs[0].length
        if self.count is None or inner * self.count > stages.INFINITE:
            return stages.INFINITE // inner * inner  # a multiple, so that ordinals pass unchanged
        return inner * self.count


class StreamRepeat(_Repeating, stages.Streamed):
    """The repetitions of a stream. State: [repetition, the input's]."""

    @override
    def stream(
        self, reader: stages.Reader, repetition: int, state: stages.State
    ) -> Iterator[tuple[Any, stages.State]]:
        first, before = state or (0, None)
        each = self.count or _REPETITIONS
        for number in range(first, each):
            empty = before is None
            for element, after in reader.read(self.inputs[0], repetition * each + number, before):
                empty = False
                yield element, [number, after]
            if empty and self.count is None:
                return  # an input without elements, repeated for ever, would never return
            before = None


def every(stage: stages.Stage, first: int, step: int) -> stages.Stage:
    """Returns the elements `first`, `first` + `step`, ... of a bound stage, which keep their keys."""
    if isinstance(stage, stages.Addressed):
        return Slice(stage, "shard", range(first, stage.length, step))
    if isinstance(stage, stages.Dividing) and not isinstance(stage, stages.Streamed):
        stage.only = range(first, stages.INFINITE, step)  # those of a loader keep their numbers, too
        return stage
    return StreamSlice(stage, "shard", range(first, stages.INFINITE, step))


class _Slicing(stages.Stage):
    """The elements at the places of a range: `take`, `skip`, `shard`."""

    def __init__(self, stage: stages.Stage, kind: str, part: range) -> None:
        super().__init__(stage, parameters={"places": f"{part.start}:{part.stop}:{part.step}"})
        self.kind, self.part = kind, part
        self.endless = stage.endless and kind != "take"


class Slice(_Slicing, _Renumbered):
    """The elements of an addressed stage at the places of a range that ends within it."""

    @property
    @override
    def length(self) -> int:
        return len(self.part)

    @override
    def needed(self, ordinals: stages.Ordinals) -> stages.Ordinals:
        index, start = stages.split_repetition(ordinals, len(self.part), self.inputs[0].length)
        return start + self.part.start + index * self.part.step


class StreamSlice(_Slicing, stages.Streamed):
    """The elements of a stream at the places of a range, which may end beyond it.

    State: [the input's, number of the next].
    """

    @override
    def stream(
        self, reader: stages.Reader, repetition: int, state: stages.State
    ) -> Iterator[tuple[Any, stages.State]]:
        before, first = state or (None, 0)
        if first >= self.part.stop:
            return
        for number, (element, after) in enumerate(reader.read(self.inputs[0], repetition, before), first):
            if number in self.part:
                yield element, [after, number + 1]
            if number + 1 >= self.part.stop:
                return
