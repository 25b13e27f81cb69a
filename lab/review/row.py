"""The result of one case."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

RUNS, THREADS = "runs", "threads"


@dataclass
class ReviewRow:
    """One case: equal from run to run, equal over thread counts, or why neither is known."""

    group: str
    name: str
    source: str = "battery"
    runs: bool | None = None
    """Whether repeated runs at the same thread count gave the same bytes; None when it could not be run."""
    threads: bool | None = None
    """Whether all thread counts gave the same bytes; None when already two runs at one count do not."""
    only_nan: bool = False
    """Whether what differs over thread counts is the bits of a NaN only, which no op promises."""
    classes: str = ""
    """Thread counts that agree, as `1 | 2 4 | 3 | 8`."""
    largest: float = 0.0
    """The largest difference, relative to the largest value."""
    refused: str = ""
    """The message of the error that refuses the op under the switch."""
    failed: str = ""
    """Why there is no result: an exception, a crash, a time-out."""
    overloads: list[str] = field(default_factory=list)
    """The overloads that the case dispatched, as `aten::sum.dim_IntList`."""
    at_fault: dict[str, list[str]] = field(default_factory=dict)
    """`runs` and `threads`: overloads that gave other outputs for equal inputs."""
    samples: int = 0
    """How many inputs were run."""
    left_out: int = 0
    """Samples of OpInfo beyond the number that is run."""
    raised: int = 0
    """Samples of OpInfo that raise for a reason of their own."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def full_name(self) -> str:
        """As `Case.full_name`."""
        return f"{self.group}: {self.name}"

    @property
    def equal(self) -> bool:
        """Returns True if all that was run gave the same bytes."""
        return bool(self.runs and self.threads) and not (self.refused or self.failed)

    def result(self) -> str:
        """A few words."""
        if self.failed:
            return f"FAILED {self.failed}"
        if self.refused:
            return f"REFUSED {self.refused}"
        if self.runs is False:
            return f"VARIES from run to run ({self.largest:.0e}){self._ops(RUNS)}"
        if self.threads is False:
            what = "in the bits of a NaN" if self.only_nan else f"({self.largest:.0e})"
            return f"DIFFERS over threads {self.classes} {what}{self._ops(THREADS)}"
        return "equal" if self.runs else "nothing to compare"

    def _ops(self, what: str) -> str:
        return f" in {', '.join(self.at_fault[what])}" if self.at_fault.get(what) else ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)
