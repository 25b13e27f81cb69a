"""The number of loader workers, read and set by wrapping the constructor of torch's DataLoader."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from samebits._inspect.patching import replaced
from samebits._inspect.user_code import INSTALLED, owner_of_frame

_NEEDS_WORKERS = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
}

OWN_LOADERS = " makes loaders of its own: their number of workers was not varied"
"""The end of the note about a package that does."""


@contextmanager
def set_loader_workers(count: int | None, note: Callable[[str], None], counts: list[int]) -> Iterator[None]:
    """Gives every `torch.utils.data.DataLoader` that the user's code makes `count` workers, subclasses included.

    None leaves the script's number, which is appended to `counts` in any case. Left alone, and named through `note`:

    - a loader over an iterable dataset, which splits its stream by worker itself: another number is another program;
    - a loader that an installed package makes, for its number is not the user's to choose (Keras makes some in `fit`).
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
        counts.append(given.get("num_workers", 0))
        if count is None:
            return construct(self, *args, **kwargs)
        given.pop("self")
        given |= {"num_workers": count} | (_NEEDS_WORKERS if count == 0 else {})
        return construct(self, **given)

    with replaced(DataLoader, "__init__", with_workers):
        yield


def _maker_of(loader: Any, frame: FrameType | None) -> str:
    """Returns the installed package whose code makes `loader`, from a constructor's `frame`; empty: the user's code.

    Constructors of classes derived from torch's do not count, wherever they are defined.
    """
    while frame is not None and _constructs(loader, frame):
        frame = frame.f_back
    name = "__main__" if frame is None else str(frame.f_globals.get("__name__"))
    installed = frame is not None and name != "__main__" and owner_of_frame(frame) in INSTALLED
    return name.partition(".")[0] if installed else ""


def _constructs(loader: Any, frame: FrameType) -> bool:
    """Returns True if the frame is a method of `loader`: `__init__` of its class, or a wrapper around it."""
    code = frame.f_code
    return code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is loader
