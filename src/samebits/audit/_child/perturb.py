"""Legal variations of a process's environment: properties that POSIX does not promise are changed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

from samebits._context import Observer, Position
from samebits._inspect.patching import replaced
from samebits.audit._record.torch_hooks import TorchListener

_SHARE, _LONGEST_S = 0.25, 0.005


class SlowMachine(Observer, TorchListener):
    """Sleeps after each step for a quarter of its time, at most 5 ms: code that reads the clock sees another machine."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def step_begins(self, run: Any, step: Position, batch: Any, *, ends_epoch: bool) -> None:
        """Sleeps after a step of a `Run`."""
        self._sleep()

    def backward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Sleeps after a step of a script without an optimizer, too."""
        self._sleep()

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Sleeps after a step of any script."""
        self._sleep()

    def _sleep(self) -> None:
        time.sleep(min(_LONGEST_S, _SHARE * (time.monotonic() - self._last)))
        self._last = time.monotonic()


class _Entries:
    """The entries of one folder in a given order: what `os.scandir` returns (iterator and context manager)."""

    def __init__(self, entries: list[os.DirEntry[Any]]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> os.DirEntry[Any]:
        return next(self._entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the iteration, as torch's and the standard library's callers expect."""
        self._entries = iter(())


def shuffle(seed: int, items: list[Any], name: Callable[[Any], Any]) -> list[Any]:
    """Returns `items` in an order that is a function of `seed` and the names. Seeds 2n and 2n+1 give opposite orders."""
    items = sorted(items, key=name)
    random.Random(seed // 2).shuffle(items)
    return items[::-1] if seed % 2 else items


@contextmanager
def set_listing_order(seed: int) -> Iterator[None]:
    """Makes `os.listdir` and `os.scandir` (so also `os.walk`, `glob`, `pathlib`) give entries in an order from `seed`.

    POSIX promises no order of a folder's entries, so a program may not depend on one. Importing modules is
    not touched: importlib has its own reference to the system call.
    """
    listdir, scandir = os.listdir, os.scandir

    def shuffled_listdir(path: Any = None) -> list[Any]:
        return shuffle(seed, listdir(path), lambda entry: entry)

    def shuffled_scandir(path: Any = None) -> _Entries:
        with scandir(path) as entries:
            return _Entries(shuffle(seed, list(entries), lambda entry: entry.name))

    with replaced(os, "listdir", shuffled_listdir), replaced(os, "scandir", shuffled_scandir):
        yield
