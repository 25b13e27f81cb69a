"""Errors of callbacks: an argument that is not valid, and a file that the disk refuses."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from samebits._arguments import is_fraction, is_int, is_number, require
from samebits._disk import CURES
from samebits.errors import RecordError


def check(call: str, **arguments: Any) -> None:
    """Raises `InvalidArgumentError` for an invalid argument, by its name."""
    for name, value in arguments.items():
        fits, wanted = _WANTED[name]
        require(fits(value), call, wanted, **{name: value})


def _number_or_none(value: Any) -> bool:
    return value is None or is_number(value)


def _one_of(*choices: str) -> tuple[Callable[[Any], bool], str]:
    return (
        lambda value: isinstance(value, str) and value in choices,
        f"one of {', '.join(map(repr, choices))}",
    )


_PATH = (lambda value: isinstance(value, str | os.PathLike) and value != "", "a path, a str or a Path")
_FROM_ZERO = partial(is_number, least=0)
_EPOCHS = (_FROM_ZERO, "a number of epochs, which must be at least 0")
_WANTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "baseline": (_number_or_none, "a number, or None"),
    "cooldown": _EPOCHS,
    "factor": (is_fraction, "a number, which must be between 0 and 1"),
    "file": (lambda value: value is None or hasattr(value, "write"), "an open file, or None for stderr"),
    "filename": _PATH,
    "filepath": _PATH,
    "initial_value_threshold": (_number_or_none, "a number, or None"),
    "keep_best": (
        lambda value: value is None or is_int(value),
        "how many files, an int, or None; at least one must be kept",
    ),
    "log_dir": _PATH,
    "min_delta": (is_number, "a number, in the metric's unit"),
    "min_lr": (_FROM_ZERO, "a number, which must be at least 0"),
    "mode": _one_of("auto", "min", "max"),
    "monitor": (
        lambda value: isinstance(value, str),
        'the name of a metric in the epoch\'s logs: "val_loss"',
    ),
    "optimizer": (
        lambda value: isinstance(value, torch.optim.Optimizer),
        "the optimizer whose rates it changes. A scheduler of torch's goes to Trainer(scheduler=...)",
    ),
    "patience": _EPOCHS,
    "separator": (lambda value: isinstance(value, str) and len(value) == 1, "must be one character"),
    "start_from_epoch": _EPOCHS,
    "state": (
        lambda value: value is None or isinstance(value, dict),
        "a dict, in which the functions remember. Hooks go by their names: Lambda(on_epoch_end=function)",
    ),
    "update_freq": _one_of("epoch", "batch"),
}
"""Per name of an argument: a check, and the valid values in words."""


@contextmanager
def translate_disk_errors(call: str) -> Iterator[None]:
    """Turns an OSError into one line that names the callback and the cure."""
    try:
        yield
    except OSError as error:
        cure = CURES.get(error.errno or 0, "Remove the cause, or choose another path")
        raise RecordError(
            f"{call}: {os.strerror(error.errno) if error.errno else error} ({error.filename or 'writing'}). "
            f"{cure} and run again: the rest of the file is restored from the last commit."
        ) from error
