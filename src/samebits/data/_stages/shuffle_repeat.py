"""Stages that only renumber an addressed input: `shuffle`, `repeat`, `take`, `skip`, `shard`; and `enumerate`."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from samebits._context import Words
from samebits._native import kernel
from samebits.data._stages.stage import INFINITE, Addressed, Ordinals, split_repetition
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys
from samebits.random import permute_index
from samebits.random._cpu.philox import block
from samebits.random._draws import feistel


class Renumbered(Addressed):
    """Element o is the input's element `renumber(o)`."""

    @abstractmethod
    def renumber(self, ordinals: Ordinals) -> Ordinals:
        """Returns the input's ordinals for these ordinals."""

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        return self.inputs[0].fetch(self.renumber(ordinals))


class _ShuffleStage(Renumbered):
    """A separate order for each repetition, or one for all of them."""

    kind = "shuffle"
    draws = True

    def __init__(self, stage: Addressed, *, reshuffle_each_epoch: bool) -> None:
        super().__init__(stage)
        self.reshuffle = reshuffle_each_epoch

    @property
    @override
    def length(self) -> int:
        return self.inputs[0].length

    @override
    def parameters(self) -> dict[str, Any]:
        return {"reshuffle_each_epoch": self.reshuffle}

    @override
    def renumber(self, ordinals: Ordinals) -> Ordinals:
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

    def order_key(self, repetition: int) -> Words:
        """Returns the key of a repetition's order."""
        return int_keys.fold(self.key, repetition if self.reshuffle else 0)

    @abstractmethod
    def order(self, repetition: int, index: Ordinals) -> Ordinals:
        """Returns the input's index at each of these places of a repetition."""


class Shuffle(_ShuffleStage):
    """A keyed permutation of each repetition: O(1) memory."""

    def __init__(self, stage: Addressed, *, reshuffle_each_epoch: bool) -> None:
        super().__init__(stage, reshuffle_each_epoch=reshuffle_each_epoch)
        if stage.endless:
            raise InvalidArgumentError(
                f"Pipeline.shuffle(): {stage.describe()} does not end, so that there is no order of all its elements; "
                "shuffle before repeat, or give shuffle a buffer_size"
            )

    @override
    def order(self, repetition: int, index: Ordinals) -> Ordinals:
        return permute_index(self.order_key(repetition), torch.from_numpy(index), self.length).numpy()


class BufferShuffle(_ShuffleStage):
    """tf.data's shuffle buffer, of ordinals instead of elements.

    Element t takes the content of slot(t), and the next element of the input replaces it; slot(t) is a function of
    (key, t). So the content of a slot at t is the input's element `buffer_size + u` for the last u < t with slot(u) the
    same: the buffer is rebuilt for any t by reading backwards, about `buffer_size` log(`buffer_size`) slots. When the
    input has ended, the slots are emptied in a keyed order.
    """

    def __init__(self, stage: Addressed, buffer_size: int, *, reshuffle_each_epoch: bool) -> None:
        super().__init__(stage, reshuffle_each_epoch=reshuffle_each_epoch)
        self.buffer_size = buffer_size
        self._now: tuple[int, int, np.ndarray] | None = (
            None  # repetition, t, content of the slots at t: a cache
        )

    @override
    def parameters(self) -> dict[str, Any]:
        return {"buffer_size": self.buffer_size} | super().parameters()

    @override
    def order(self, repetition: int, index: Ordinals) -> Ordinals:
        key = self.order_key(repetition)
        size = min(self.buffer_size, self.length)
        steady = self.length - size  # from there on the input has ended
        result = np.empty_like(index)
        ends = np.flatnonzero(np.diff(index) != 1) + 1
        for run in np.split(np.arange(index.size), ends):  # neighbours share one pass over the buffer
            first, count = int(index[run[0]]), run.size
            is_filling = max(0, min(count, steady - first))
            slots = self._slots_at(repetition, key, min(first, steady), size)
            emptied = _emit(*key, min(first, steady), slots, is_filling)
            self._now = (repetition, min(first, steady) + is_filling, slots)
            last = (
                feistel.permute_indices(
                    int_keys.fold(key, "end"), max(first, steady) - steady, first + count - steady, size
                )
                if first + count > steady
                else np.empty(0, np.int64)
            )
            result[run] = np.concatenate([emptied, slots[last]])
        return result

    def _slots_at(self, repetition: int, key: Words, t: int, size: int) -> np.ndarray:
        """Returns the content of the slots at t; computed forward from the cached ones where these are near."""
        if self._now is not None:
            known, then, slots = self._now
            if known == repetition and 0 <= t - then <= 16 * size:
                _emit(*key, then, slots, t - then)
                return slots
        slots = np.full(size, -1, np.int64)
        _rebuild(*key, t, slots)
        return slots


@kernel("int64[::1](uint64, uint64, int64, int64[::1], int64)")
def _emit(seed: Any, offset: Any, t: Any, slots: Any, count: Any) -> Any:
    """Returns the elements t, t + 1, ...; moves `slots` on to t + count."""
    result = np.empty(count, np.int64)
    for number in range(count):
        slot = slot_at(seed, offset, t + number, slots.size)
        result[number] = slots[slot]
        slots[slot] = slots.size + t + number
    return result


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


class Repeat(Renumbered):
    """The repetitions of the input, one after another."""

    kind = "repeat"

    def __init__(self, stage: Addressed, count: int | None) -> None:
        super().__init__(stage)
        self.count = count

    @property
    @override
    def length(self) -> int:
        inner = self.inputs[0].length
        if self.count is None or inner * self.count > INFINITE:
            return INFINITE // inner * inner  # a multiple, so that ordinals pass unchanged
        return inner * self.count

    @property
    @override
    def endless(self) -> bool:
        return self.count is None or super().endless

    @override
    def parameters(self) -> dict[str, Any]:
        return {"count": self.count}

    @override
    def renumber(self, ordinals: Ordinals) -> Ordinals:
        return ordinals


class Slice(Renumbered):
    """The elements at the places of a range: `take`, `skip`, `shard`."""

    def __init__(self, stage: Addressed, kind: str, part: range) -> None:
        super().__init__(stage)
        self.kind = kind
        self.part = part

    @property
    @override
    def length(self) -> int:
        return len(self.part)

    @property
    @override
    def endless(self) -> bool:
        return super().endless and self.kind != "take"

    @override
    def parameters(self) -> dict[str, Any]:
        return {"places": f"{self.part.start}:{self.part.stop}:{self.part.step}"}

    @override
    def renumber(self, ordinals: Ordinals) -> Ordinals:
        index, start = split_repetition(ordinals, len(self.part), self.inputs[0].length)
        return start + self.part.start + index * self.part.step


class Enumerate(Addressed):
    """(number within the repetition, element)."""

    kind = "enumerate"

    def __init__(self, stage: Addressed, start: int) -> None:
        super().__init__(stage)
        self.start = start

    @property
    @override
    def length(self) -> int:
        return self.inputs[0].length

    @override
    def parameters(self) -> dict[str, Any]:
        return {"start": self.start}

    @override
    def fetch(self, ordinals: Ordinals) -> list[tuple[int, Any]]:
        numbers = self.start + ordinals % self.length
        return list(zip(numbers.tolist(), self.inputs[0].fetch(ordinals), strict=True))
