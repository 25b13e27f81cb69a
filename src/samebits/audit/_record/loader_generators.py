"""The random generators that a script's torch loaders can reach, such as `dataset.rng`: their states when one is first iterated.

They are compared where batches differ: then one that began in another state is the cause.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torch.utils.data import DataLoader

from samebits._inspect.generators_in import generators_in
from samebits._inspect.patching import replaced
from samebits._inspect.rng_states import of_generator

_PARTS = ("dataset", "sampler", "batch_sampler", "collate_fn", "worker_init_fn")


@contextmanager
def watch_loaders(begins: Callable[[DataLoader[Any]], None]) -> Iterator[None]:
    """Calls `begins` with each torch DataLoader when it is iterated for the first time."""
    iterate, known = DataLoader.__iter__, WeakSet[DataLoader[Any]]()

    @functools.wraps(iterate)
    def watched(self: DataLoader[Any]) -> Any:
        if self not in known:
            known.add(self)
            begins(self)
        return iterate(self)

    with replaced(DataLoader, "__iter__", watched):
        yield


def states_of(loader: DataLoader[Any]) -> dict[str, str]:
    """Returns path to hash, of the state of each generator that the loader's parts hold."""
    parts = [(name, getattr(loader, name, None)) for name in _PARTS]
    return {found.path: of_generator(found.generator).hex() for found in generators_in(parts)}
