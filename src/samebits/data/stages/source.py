"""Where elements come from: any object with `__len__` and `__getitem__`, or a range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from samebits.data import scope
from samebits.data.function import Function
from samebits.data.stage import Addressed, Ordinals
from samebits.errors import EmptyDatasetError, InvalidArgumentError
from samebits.random import words


class Source(Addressed):
    """The elements of an indexable object, read by index; `__getitems__` where the object has it."""

    kind = "from_source"

    def __init__(self, data: Any) -> None:
        super().__init__()
        if not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
            raise InvalidArgumentError(
                f"Pipeline.from_source takes an object with __len__ and __getitem__, got {type(data).__name__}; "
                "use Pipeline.from_iterable for what can only be iterated"
            )
        self.data = data
        self._length = len(data)
        if self._length == 0:
            raise EmptyDatasetError(
                f"Pipeline.from_source: {type(data).__name__} has no elements (its length is 0)"
            )
        self._at_once: Callable[[list[int]], list[Any]] | None = getattr(data, "__getitems__", None)
        self._one = Function(data.__getitem__, self.kind)

    @property
    @override
    def length(self) -> int:
        return self._length

    @override
    def parameters(self) -> dict[str, Any]:
        return {"data": type(self.data).__name__, "length": self._length}

    @override
    def fetch(self, ordinals: Ordinals) -> list[Any]:
        indices = (ordinals % self._length).tolist()
        if self._at_once is None:
            return self._one.over(self.key, ordinals, indices)
        if (
            scope.filling()
        ):  # the object reads a block at once: its draws are keyed by the block's first ordinal
            scope.fill(words.fold(self.key, int(ordinals[0])))
        return list(self._at_once(indices))


class Range(Addressed):
    """The integers of `range(*arguments)`."""

    kind = "range"

    def __init__(self, *arguments: int) -> None:
        super().__init__()
        self.range = range(*arguments)
        if not self.range:
            raise EmptyDatasetError(f"Pipeline.range{arguments}: this range has no elements")

    @property
    @override
    def length(self) -> int:
        return len(self.range)

    @override
    def parameters(self) -> dict[str, Any]:
        return {"range": str(self.range)}

    @override
    def fetch(self, ordinals: Ordinals) -> list[int]:
        return (self.range.start + ordinals % len(self.range) * self.range.step).tolist()
