"""The number of loader workers, seen and set from outside: a wrap of torch's DataLoader constructor."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

_NEEDS_WORKERS = {
    "prefetch_factor": None,
    "persistent_workers": False,
    "timeout": 0,
    "multiprocessing_context": None,
}


@contextmanager
def loader_workers(count: int | None, note: Callable[[str], None], own: list[int]) -> Iterator[None]:
    """Every `torch.utils.data.DataLoader` over a map-style dataset gets `count` workers, subclasses included.

    None leaves the script's own number, which is appended to `own` in any case. An iterable dataset splits its stream by worker itself, so another number is another program: left alone
    and named through `note`.
    """
    construct = DataLoader.__init__
    signature = inspect.signature(construct)

    @functools.wraps(construct)
    def with_workers(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            given = signature.bind(self, *args, **kwargs).arguments
        except TypeError:
            return construct(self, *args, **kwargs)  # torch's own message
        if isinstance(given.get("dataset"), IterableDataset):
            note(f"{type(given['dataset']).__name__} is iterable: its number of workers was not varied")
            return construct(self, *args, **kwargs)
        own.append(given.get("num_workers", 0))
        if count is None:
            return construct(self, *args, **kwargs)
        given.pop("self")
        given |= {"num_workers": count} | (_NEEDS_WORKERS if count == 0 else {})
        return construct(self, **given)

    DataLoader.__init__ = with_workers  # type: ignore[method-assign]
    try:
        yield
    finally:
        DataLoader.__init__ = construct  # type: ignore[method-assign]
