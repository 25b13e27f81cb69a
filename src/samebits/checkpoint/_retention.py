"""The rule of the commits that stay: the newest, and the best by their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Retention(NamedTuple):
    """The rule of `Run(keep=..., keep_best=...)`: for the writer, for uploads, and for pruning by hand."""

    keep: int = 2
    """The newest valid commits that stay."""
    keep_best: int = 0
    """The commits that stay for their values; smaller is better."""

    def best(self, values: Mapping[str, float | None]) -> set[str]:
        """Returns the names of the commits that stay for their values; of equal values the earlier."""
        valued = sorted((value, step_of(name), name) for name, value in values.items() if value is not None)
        return {name for _, _, name in valued[: self.keep_best]}

    def staying(self, names: Sequence[str], values: Mapping[str, float | None]) -> set[str]:
        """Returns the valid commits, of `names` (newest first), that stay; `values` may have others, too."""
        valid = {name: values.get(name) for name in names}
        return {*names[: self.keep], *self.best(valid)}

    def would_stay(self, value: float, others: Iterable[float | None]) -> bool:
        """Returns True if a later commit of that value would be among the best, beside `others`."""
        smaller = sum(other is not None and other <= value for other in others)
        return not math.isnan(value) and smaller < self.keep_best


def step_of(name: str) -> int:
    return int(name.split("-", maxsplit=1)[0])
