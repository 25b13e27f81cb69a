"""The kill points: where in a step a checked process kills itself. `variations.Killer` does it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from samebits.errors import InvalidArgumentError


class KillPoint(NamedTuple):
    """One place of a step."""

    words: str
    """The place in messages; {} is the number of the step."""
    meaning: str


KILL_POINTS = {
    "body": KillPoint(
        "in step {}",
        "at the step's backward, or when the batch is passed to the loop in a script that calls none",
    ),
    "optimizer": KillPoint("in step {}'s optimizer", "right after the optimizer's step"),
    "after_body": KillPoint("after step {}", "at the boundary after the body, before the next batch"),
    "validation": KillPoint(
        "in step {}'s validation",
        "when a validation of the library's begins, or at an evaluation after the optimizer's step",
    ),
    "commit": KillPoint("while saving before step {}", "between a commit's tensors and its manifest"),
}
"""By the name that `LaunchSpec.kill`, `verify` and `samebits.testing.run_and_kill` use."""


@dataclass(frozen=True)
class Kill:
    """A SIGKILL from inside, at one of `KILL_POINTS` of a step."""

    at: str
    step: int
    rank: int | None = None
    """The rank that is killed, in a job of several; None: all of them, by the death of torchrun."""

    def __post_init__(self) -> None:
        if self.at not in KILL_POINTS:
            raise InvalidArgumentError(f"Kill({self.at!r}): it is one of {tuple(KILL_POINTS)}")

    def description(self) -> str:
        return KILL_POINTS[self.at].words.format(self.step)
