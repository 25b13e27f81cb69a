"""The best commits: by a value that is logged, or set by `run.best`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from samebits._inspect import user_code
from samebits.errors import InvalidArgumentError
from samebits.train._run_arguments import check_number


class BestCommits:
    """The best commits, by `Run(keep_best=..., best=...)`.

    Raises:
        InvalidArgumentError: for a negative number, or a name with keep_best=0.
    """

    def __init__(self, keep: int, name: str | None) -> None:
        if type(keep) is not int or keep < 0:
            raise InvalidArgumentError(f"Run(keep_best={keep!r}): a number of commits, 0 for none.")
        if name is not None and not isinstance(name, str):
            raise InvalidArgumentError(
                f'Run(best={name!r:.60}): the name of a value in run.log: best="val_loss". A value goes to run.best(value).'
            )
        if name is not None and not keep:
            raise InvalidArgumentError(
                f"Run(best={name!r}): say how many commits to keep for it: keep_best=1."
            )
        self.keep = keep
        self.rises = name is not None and name.startswith("max:")
        self.name = name.removeprefix("max:") if name is not None else None
        self.value: float | None = None
        """The value of the state at the next boundary."""
        self.names: set[str] = set()
        """All names that were logged."""

    def select(self, values: Mapping[str, Any]) -> float | None:
        """Returns the value among `values` that decides, smaller is better; None where its name is missing."""
        self.names.update(values)
        if self.name is None or self.name not in values:
            return None
        check_number(values[self.name], f"run.log({self.name}")
        return -float(values[self.name]) if self.rises else float(values[self.name])

    @property
    def never_logged(self) -> bool:
        """Returns True if other names were logged, and not the one that decides."""
        return self.name is not None and bool(self.names) and self.name not in self.names

    def warn(self, call: str) -> None:
        """Warns at the end of the run that the name was never logged."""
        user_code.warn(
            f"{call}(best={self.name!r}): no value of this name was logged, so that no commit was kept for it. There were "
            f"{', '.join(sorted(self.names))}.",
        )

    def would_stay(self, value: float, kept: Mapping[str, float | None]) -> bool:
        """Returns True if a commit of that value would stay."""
        values = sorted(number for number in kept.values() if number is not None)
        return (
            self.keep > 0
            and not math.isnan(value)
            and (len(values) < self.keep or value < values[self.keep - 1])
        )

    def pop(self) -> float | None:
        """Returns the value of the state at this boundary, and resets it."""
        value, self.value = self.value, None
        return value if value is not None and math.isfinite(value) else None
