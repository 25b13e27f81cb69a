"""The domain: the ranks that hold the same bits, as one label per rank.

Interned: a partition is a small integer.
Ranks r and s are in one class where the analysis claims that they hold equal bits. Finer says less, so `meet`
(the coarsest partition finer than both) is what an op does with its inputs, and values only ever go down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from samebits.errors import InvalidArgumentError

Groups = tuple[tuple[int, ...], ...]
"""Ranks in groups, each in its order; every rank is in one of them."""


class Partitions:
    """The partitions of `ranks` ranks that have occurred so far. The same classes have the same number."""

    def __init__(self, ranks: int) -> None:
        if ranks < 1:
            raise InvalidArgumentError(f"Partitions({ranks}): the number of ranks is at least 1.")
        self.ranks = ranks
        self._numbers: dict[bytes, int] = {}
        self._labels: list[NDArray[np.int32]] = []
        self._met: dict[tuple[int, int], int] = {}
        self._moved: dict[object, int] = {}
        self.equal = self.from_symbols(np.zeros(ranks, np.int64))
        self.distinct = self.from_symbols(np.arange(ranks))

    def from_symbols(self, symbols: NDArray[np.int64]) -> int:
        """Returns the partition with one integer symbol per rank [ranks]: equal symbol, equal bits."""
        _, first, inverse = np.unique(symbols, return_index=True, return_inverse=True)
        order = np.argsort(np.argsort(first)).astype(np.int32)
        # classes numbered by their lowest rank, so that equal classes have equal bytes
        labels = order[inverse]
        key = labels.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._labels)
            self._labels.append(labels)
        return self._numbers[key]

    def from_values(self, values: Sequence[object]) -> int:
        """Returns the partition with one hashable value per rank [ranks]."""
        seen: dict[object, int] = {}
        return self.from_symbols(np.array([seen.setdefault(value, len(seen)) for value in values], np.int64))

    def from_groups(self, groups: Iterable[Iterable[int]]) -> int:
        """Returns the partition into `groups`; a rank in none of them is alone.

        Raises InvalidArgumentError for a rank in two groups, and for one that does not exist.
        """
        symbols = np.arange(self.ranks)
        seen: set[int] = set()
        for group in map(tuple, groups):
            if len(set(group)) < len(group) or seen & set(group) or not set(group) <= set(range(self.ranks)):
                raise InvalidArgumentError(
                    f"Groups {group}: ranks go from 0 to {self.ranks - 1}, and each is in one group only."
                )
            seen |= set(group)
            symbols[list(group)] = min(group, default=0)
        return self.from_symbols(symbols)

    def labels(self, number: int) -> NDArray[np.int32]:
        """Returns a class label per rank [ranks], classes numbered by their lowest rank. Read-only."""
        return self._labels[number]

    def classes(self, number: int) -> Groups:
        members: dict[int, list[int]] = {}
        for rank, label in enumerate(self._labels[number].tolist()):
            members.setdefault(label, []).append(rank)
        return tuple(map(tuple, members.values()))

    def meet(self, one: int, other: int) -> int:
        if other in {one, self.equal}:
            return one
        if one == self.equal:
            return other
        key = (one, other) if one < other else (other, one)
        if key not in self._met:
            pairs = self._labels[one].astype(np.int64) * self.ranks + self._labels[other]
            self._met[key] = self.from_symbols(pairs)
        return self._met[key]

    def holds_over(self, number: int, over: int) -> bool:
        """Returns True if ranks that are together in `over` hold equal bits by `number`."""
        return self.meet(number, over) == over

    def apart_over(self, number: int, over: int) -> bool:
        """Returns True if no two ranks that are together in `over` are together in `number`."""
        return self.meet(number, over) == self.distinct

    def cached(self, key: object, symbols: Callable[[], Sequence[object]]) -> int:
        """Returns the partition with `symbols()`, computed once per `key`."""
        if key not in self._moved:
            self._moved[key] = self.from_values(symbols())
        return self._moved[key]

    def text(self, number: int) -> str:
        """Returns the classes as text, `0-3 | 4-7`."""
        if number == self.equal:
            return "equal"
        if number == self.distinct:
            return "all differ"
        shown = self.classes(number)
        more = f" | ... {len(shown) - 8} more" if len(shown) > 8 else ""
        return " | ".join(map(_ranks, shown[:8])) + more


def _ranks(members: tuple[int, ...]) -> str:
    runs: list[list[int]] = []
    for rank in members:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
