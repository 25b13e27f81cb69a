"""The hyperparameters with which a program made its optimizers and schedulers, compared at a resume.

A commit restores the values that a run began with, so another value in the program would have no effect. It
is refused by name, or accepted with a warning: `Run(allow_changes=["hyperparameters"])`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from samebits._inspect import user_code
from samebits.errors import RunMismatchError

NAME = "hyperparameters"
"""Their name in `allow_changes`."""

_PLAIN = (bool, int, float, str, type(None))
_TUNED = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
_NOT_CHOSEN = {
    "params", "initial_lr", "base_lrs", "_last_lr", "last_epoch", "_step_count", "_is_initial", "T_cur",
    "T_i", "_get_lr_called_within_step", "best", "num_bad_epochs", "cooldown_counter", "mode_worse",
}  # fmt: skip
"""Entries of the states of torch's optimizers and schedulers that say where they are, or follow from `lr`."""

Values = dict[str, Any]

_seen: WeakKeyDictionary[Any, tuple[list[Values], list[Values]]] = WeakKeyDictionary()
"""By optimizer or scheduler: the values with which the program made it, and its last run left it."""


class Hyperparameters:
    """The values of one run, by object and parameter group, and those that its commits record."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._here = {name: _created(obj) for name, obj in objects.items() if isinstance(obj, _TUNED)}
        self._recorded: dict[str, list[Values]] = {}

    def to_dict(self) -> dict[str, list[Values]]:
        """Returns the values for a commit: those that the run began with."""
        return {**self._here, **self._recorded}

    def check(self, recorded: Mapping[str, list[Values]], where: str, allowed: Collection[str]) -> None:
        """Compares with the values of the commit, which are then those of this run, too.

        Raises RunMismatchError if some differ, and "hyperparameters" is not in `allowed` (else: a warning).
        """
        here = self._here.items()
        lines = [line for name, groups in here for line in _changes(name, recorded.get(name, []), groups)]
        if lines and NAME not in allowed:
            raise RunMismatchError(
                f"{where} was begun with other hyperparameters:\n  " + "\n  ".join(lines) + "\n"
                "Put the old values back (the length of a schedule, too, where it follows from the "
                "number of epochs); or choose another run directory; or continue with those of the "
                f"commit: Run(allow_changes={sorted({*allowed, NAME})}), or fit(allow_changes=...). To "
                "change a rate in the middle of a run, set it in the loop, by step.number."
            )
        self._recorded = dict(recorded)
        if lines:
            user_code.warn(
                f"{where}: made with other values than the run began with: {'; '.join(lines)}. Those of the "
                "commit are used. To change them, set them in the loop, by step.number, or begin another "
                "run from these weights."
            )

    def check_added(self, name: str, obj: Any, where: str, allowed: Collection[str]) -> None:
        """Does the same for an object that is added after the run was entered."""
        later = Hyperparameters({name: obj})
        later.check({key: groups for key, groups in self._recorded.items() if key == name}, where, allowed)
        self._here |= later._here


def note_left(objects: Mapping[str, Any]) -> None:
    """Notes the values with which a run leaves its objects: a program that keeps them chose no others."""
    for obj in objects.values():
        if isinstance(obj, _TUNED) and obj in _seen:
            _seen[obj] = _seen[obj][0], _current(obj)


def _created(obj: Any) -> list[Values]:
    """Returns the values with which the program made an object, or has set since the last run with it."""
    now = _current(obj)
    made, left = _seen.setdefault(obj, (now, now))
    return [
        {
            name: _of(made, number, name) if _of(left, number, name) == value else value
            for name, value in group.items()
        }
        for number, group in enumerate(now)
    ]


def _of(groups: list[Values], number: int, name: str) -> Any:
    return groups[number].get(name) if number < len(groups) else None


def _changes(name: str, recorded: list[Values], here: list[Values]) -> Iterator[str]:
    """Yields `optimizer.lr: 0.1 in the commit, 0.05 here`; a value that is missing is None."""
    for number, (before, now) in enumerate(zip(recorded, here, strict=False)):
        owner = f"{name}[{number}]" if len(here) > 1 else name
        for key in sorted((before.keys() | now.keys()) - _NOT_CHOSEN):
            if before.get(key) != now.get(key):
                yield f"{owner}.{key}: {before.get(key)} in the commit, {now.get(key)} here"


def _current(obj: Any) -> list[Values]:
    """Returns the values that were chosen for an optimizer, by parameter group, or for a scheduler."""
    if isinstance(obj, torch.optim.Optimizer):
        return [dict(_leaves(_with_initial_lr(group))) for group in obj.param_groups]
    return [dict(_leaves(obj.state_dict()))]


def _with_initial_lr(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the group with the program's `lr`: a scheduler has put its first one there (warm-up: 0.0)."""
    return {**group, "lr": group["initial_lr"]} if "initial_lr" in group else group


def _leaves(values: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """Yields plain values, as JSON has them, by their path: the schedulers in a SequentialLR have theirs."""
    for name, value in values.items():
        if name in _NOT_CHOSEN:
            continue
        if isinstance(value, Counter):  # the milestones of a MultiStepLR
            yield f"{inside}{name}", sorted(value.elements())
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value):
                yield from _leaves(item, f"{inside}{name}[{number}].")
        else:
            yield f"{inside}{name}", _plain(value)


def _plain(value: Any) -> Any:
    if (isinstance(value, torch.Tensor) and value.numel() == 1) or isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value if isinstance(value, _PLAIN) else str(type(value).__name__)
