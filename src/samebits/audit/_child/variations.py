"""Variations of a checked process: a kill, a slower machine, an order of listings, renames, loader workers.

POSIX promises neither the speed of a machine nor the order of a folder's entries, so a program may not depend
on them.
"""

from __future__ import annotations

import errno
import functools
import inspect
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from samebits._context import Observer, Position
from samebits._inspect.patching import replaced
from samebits._inspect.user_code import INSTALLED, outwards, owner_of_frame, owner_of_module
from samebits.audit._record.torch_hooks import LoaderWorkers, TorchListener


class Killer(Observer, TorchListener):
    """Kills this process once, at `at` of step `step` (see `LaunchSpec.kill`), after `last_words(at, step)`.

    With `parent`, the process that started this one is killed, too: torchrun, with which all ranks die.
    "body": at the backward of the step, or when the batch is passed to the loop in a script that calls none.
    """

    def __init__(
        self, at: str, step: int, last_words: Callable[[str, int], None], *, parent: bool = False
    ) -> None:
        self._at, self._target = at, step
        self._last_words = last_words
        self._parent = parent
        self._now: int | None = 0
        self._in_run = False
        self._stepped = self._backward_seen = self._body_over = False

    def run_opened(self, run: Any) -> None:
        self._in_run, self._now = True, None

    def boundary(self, run: Any, step: Position, frame: FrameType) -> None:
        """Kills after the step before; one without backward, or that accumulates gradients, ends here."""
        self._body_over = True
        if self._now == step.step - 1:
            # "validation": evaluations of this step came before its optimizer step, so none has killed it.
            self._kill_if("after_body", "body", "optimizer", "validation")
        self._now = None

    def commit_writing(self, run: Any, step: Position) -> None:
        if self._at == "commit" and step.step == self._target:
            self._kill()

    def step_begins(self, run: Any, step: Position, batch: Any, *, ends_epoch: bool) -> None:
        self._now, self._stepped = step.step, False
        if self._body_over and not self._backward_seen and step.batch_index:
            self._kill_if("body")

    def validation_begins(self, run: Any, step: Position) -> None:
        self._kill_if("validation")

    def backward(self, roots: tuple[torch.Tensor, ...]) -> None:
        self._backward_seen = True
        self._kill_if("body")

    def forward(
        self, module: torch.nn.Module, inputs: tuple[Any, ...], output: Any, *, evaluates: bool
    ) -> None:
        """Kills in an evaluation after the optimizer step, in the same body."""
        if evaluates and self._stepped:
            self._kill_if("validation")

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._stepped = True
        self._kill_if("optimizer")
        if not self._in_run:
            self._kill_if("after_body")
            self._now = (self._now or 0) + 1

    def _kill_if(self, *places: str) -> None:
        if self._at in places and self._now == self._target:
            self._kill()

    def _kill(self) -> None:
        self._last_words(self._at, self._target)
        if self._parent:
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


_SHARE, _LONGEST_S = 0.25, 0.005


class SlowMachine(Observer, TorchListener):
    """Sleeps for a quarter of each step's time, at most 5 ms: the clock runs as on another machine."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def step_begins(self, run: Any, step: Position, batch: Any, *, ends_epoch: bool) -> None:
        self._sleep()

    def backward(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Sleeps after a step of a script without an optimizer, too."""
        self._sleep()

    def optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self._sleep()

    def _sleep(self) -> None:
        time.sleep(min(_LONGEST_S, _SHARE * (time.monotonic() - self._last)))
        self._last = time.monotonic()


class _Entries(Iterator[os.DirEntry[Any]], AbstractContextManager[Any]):
    """The entries of a folder in a given order, as `os.scandir` gives them (iterator, context manager)."""

    def __init__(self, entries: list[os.DirEntry[Any]]) -> None:
        self._entries = iter(entries)

    def __next__(self) -> os.DirEntry[Any]:
        return next(self._entries)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the iteration, as torch's and the standard library's callers expect."""
        self._entries = iter(())


def shuffle(seed: int, items: list[Any], name: Callable[[Any], Any]) -> list[Any]:
    """Returns `items` in an order from `seed` and their names. Seeds 2n and 2n+1 give opposite orders."""
    items = sorted(items, key=name)
    random.Random(seed // 2).shuffle(items)
    return items[::-1] if seed % 2 else items


@contextmanager
def set_listing_order(seed: int) -> Iterator[None]:
    """Makes `os.listdir` and `os.scandir` (so `os.walk`, `glob`, `pathlib`) give an order from `seed`.

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


@contextmanager
def rename_folders_by_copy() -> Iterator[None]:
    """Makes `os.rename` and `os.replace` copy a folder where the kernel raises "cross-device link" falsely.

    An overlay that an ordinary user mounts cannot rename a folder of the lower layer (kernel documentation,
    filesystems/overlayfs, "redirect_dir"); the user's own folder can. Between true devices it stays an error.
    """
    rename, replace = _copy_on_exdev(os.rename), _copy_on_exdev(os.replace)
    with replaced(os, "rename", rename), replaced(os, "replace", replace):
        yield


def _copy_on_exdev(call: Callable[..., None]) -> Callable[..., None]:
    def renamed(src: Any, dst: Any, **folders: Any) -> None:
        try:
            call(src, dst, **folders)
        except OSError as error:
            if error.errno != errno.EXDEV or folders or not _one_device(src, dst):
                raise
            _move(src, dst)

    return renamed


def _move(src: Any, dst: Any) -> None:
    with suppress(FileNotFoundError):
        os.rmdir(dst)  # an empty folder is replaced, another one is an error
    shutil.copytree(src, dst, symlinks=True)
    shutil.rmtree(src)


def _one_device(src: Any, dst: Any) -> bool:
    if os.path.islink(src) or not os.path.isdir(src):
        return False
    return os.stat(src).st_dev == os.stat(os.path.dirname(os.path.abspath(dst))).st_dev


_NEEDS_WORKERS = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
}

OWN_LOADERS = " makes loaders of its own: their number of workers was not varied"
"""The end of the note about a package that does."""


@contextmanager
def set_loader_workers(
    count: int | None, note: Callable[[str], None], own: LoaderWorkers, *, torchs: bool = True
) -> Iterator[None]:
    """Gives every `torch.utils.data.DataLoader` that the user's code makes `count` workers (subclasses, too).

    None leaves the script's number, which `own` gets in any case; without `torchs`, only samebits' loaders
    get another one. Left alone, and named by `note`:

    - a loader over an iterable dataset, which splits its stream by worker: another number, another program;
    - a loader that an installed package makes: its number is not the user's (Keras makes some in `fit`).
    """
    construct = DataLoader.__init__
    signature = inspect.signature(construct)

    @functools.wraps(construct)
    def with_workers(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            return construct(self, *args, **kwargs)  # torch's own message
        if package := _maker_of(self, sys._getframe(1)):
            note(f"{package}{OWN_LOADERS}")
            return construct(self, *args, **kwargs)
        if isinstance(given.get("dataset"), IterableDataset):
            note(f"{type(given['dataset']).__name__} is iterable: its number of workers was not varied")
            return construct(self, *args, **kwargs)
        is_torchs = all(owner_of_module(kind.__module__) != "samebits" for kind in type(self).__mro__)
        (own.torchs if is_torchs else own.samebits).append(given.get("num_workers", 0))
        if count is None or (is_torchs and not torchs):
            return construct(self, *args, **kwargs)
        given.pop("self")
        given |= {"num_workers": count} | (_NEEDS_WORKERS if count == 0 else {})
        return construct(self, **given)

    with replaced(DataLoader, "__init__", with_workers):
        yield


def _maker_of(loader: Any, frame: FrameType | None) -> str:
    """Returns the installed package whose code makes `loader`, by a constructor's frame; empty: the user's.

    Constructors of classes derived from torch's do not count, wherever they are defined.
    """
    frame = next((one for one in outwards(frame) if not _constructs(loader, one)), None)
    name = "__main__" if frame is None else str(frame.f_globals.get("__name__"))
    installed = frame is not None and name != "__main__" and owner_of_frame(frame) in INSTALLED
    return name.partition(".")[0] if installed else ""


def _constructs(loader: Any, frame: FrameType) -> bool:
    """Returns True if the frame is a method of `loader`: `__init__` of its class, or a wrapper around it."""
    code = frame.f_code
    return code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is loader
