"""A `samebits.data.DataLoader` with the arguments of a torch DataLoader that another library holds."""

from __future__ import annotations

from typing import Any

import torch.utils.data as torch_data

from samebits.data._loader import DataLoader

_ARGUMENTS = (
    *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context"),
    *("generator", "prefetch_factor", "persistent_workers"),
)


def keyed_loader(loader: Any, **changes: Any) -> Any:
    """Returns a `samebits.data.DataLoader` with the arguments of a torch DataLoader, but for some.

    What it cannot do (an IterableDataset, a loader of another class) stays as it is: a run replays it.
    """
    if type(loader).__module__.partition(".")[0] not in {"torch", "torchdata"}:
        return loader
    if isinstance(loader.dataset, torch_data.IterableDataset) or not getattr(loader, "in_order", True):
        return loader
    kept = {name: getattr(loader, name) for name in _ARGUMENTS}
    return DataLoader(loader.dataset, **{**kept, **_order(loader), **changes})


def _order(loader: torch_data.DataLoader[Any]) -> dict[str, Any]:
    """Returns the arguments that say in which order a loader reads, and in which batches."""
    sampler, batches = loader.sampler, {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if loader.batch_size is None and loader.batch_sampler is not None:
        given = loader.batch_sampler
        if type(given) is not torch_data.BatchSampler:
            return {"batch_sampler": given}
        sampler, batches = given.sampler, {"batch_size": given.batch_size, "drop_last": given.drop_last}
    if type(sampler) is torch_data.SequentialSampler:
        return batches
    is_random = type(sampler) is torch_data.RandomSampler and not sampler.replacement
    if is_random and sampler.num_samples == len(loader.dataset):  # type: ignore[arg-type]
        return {**batches, "shuffle": True}
    return {**batches, "sampler": sampler}
