"""The kill points of a process: those that the caller names, made definite by the steps of the baseline."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from samebits.audit._child.kill_points import KILL_POINTS, Kill
from samebits.audit._verify.check_plan import BaselineFacts, ProcessVariation
from samebits.errors import InvalidArgumentError

Place = int | str | tuple[str, int]
_RANDOM = "random"
_REPLAYED = 3
"""Maximum number of steps between the commit and the kill."""


@dataclass(frozen=True)
class PlannedKill:
    """The kill of one process: by itself at a place, or from outside after `instant` seconds."""

    process: ProcessVariation
    instant: float | None = None

    def description(self) -> str:
        """Returns the kill point in words."""
        if self.process.kill is None:
            return f"after {self.instant:.2f} s"
        return self.process.kill.description()


def check_names(places: Sequence[Place]) -> None:
    """Raises `InvalidArgumentError` for an unknown place."""
    for place in places:
        _split(place)


def check_places(places: Sequence[Place], facts: BaselineFacts) -> None:
    """Raises `InvalidArgumentError` for a place that the program does not reach."""
    for place in places:
        where, step = _split(place)
        if where == "validation" and not facts.validations:
            raise InvalidArgumentError(
                "run_and_kill(at='validation'): no validation was seen in the program."
            )
        if step is not None and step not in (facts.validations if where == "validation" else facts.steps):
            raise InvalidArgumentError(
                f"run_and_kill(at={place!r}): the program has steps {facts.steps[0]} to {facts.steps[-1]}, "
                f"and validations in the bodies of steps {list(facts.validations)}."
            )


def plan_kill(
    place: Place,
    following: Sequence[Place],
    reached: int,
    facts: BaselineFacts,
    seconds: float,
    draw: random.Random,
) -> PlannedKill:
    """Returns the kill at `place`, when the newest commit is at step `reached` and kills at `following` come after it.

    The commits before it are before the steps that those name, so that each can be reached.
    """
    where, step = _split(place)
    if where == _RANDOM:
        return PlannedKill(ProcessVariation(), draw.uniform(0, seconds))
    named = [following_step for _, following_step in map(_split, following) if following_step is not None]
    before = min(named, default=facts.steps[-1] + 1)
    if step is None:
        step = _draw_step(where, len(following), reached, before, facts, draw)
    latest = min(step - 1 if where == "commit" else step, before)
    commit = draw.randint(max(reached, latest - _REPLAYED), max(reached, latest))
    commits = (commit, step) if where == "commit" else (commit,)
    return PlannedKill(ProcessVariation(Kill(where, step), commit_steps=commits))


def _split(place: Place) -> tuple[str, int | None]:
    """Returns place and step."""
    where, step = (
        ("body", place) if isinstance(place, int) else (place, None) if isinstance(place, str) else place
    )
    if where not in (_RANDOM, *KILL_POINTS) or (where == _RANDOM and step is not None):
        raise InvalidArgumentError(
            f"run_and_kill(at={place!r}): choose 'random', a step number, one of {tuple(KILL_POINTS)}, or (one of them, step)."
        )
    return where, step


def _draw_step(
    where: str, remaining: int, reached: int, before: int, facts: BaselineFacts, draw: random.Random
) -> int:
    """Draws a step after `reached` and before `before`, early enough that the kills that follow have their own steps."""
    possible = facts.validations if where == "validation" else facts.steps[1:] or facts.steps
    later = [step for step in possible if step > reached] or list(possible[-1:])
    later = [step for step in later if step < before] or later
    return draw.choice(later[: max(1, len(later) // (1 + remaining))])
