"""Accelerate: what reads a loader that `accelerator.prepare` has made, so that a run resumes in its middle.

```python
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "accelerator": accelerator}
with samebits.Run("runs/digits", **objects) as run:
    for step, (x, y) in run.steps(loader, epochs=10):
        ...
```
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import torch.utils.data as torch_data

from samebits._inspect import user_code
from samebits.data._keyed_loader import keyed_loader
from samebits.errors import InvalidArgumentError
from samebits.random._process import seeds
from samebits.train._framework_privates import require_attributes


def prepared(loader: Any) -> PreparedLoader | None:
    """Returns what reads a loader of Accelerate, the same at each call; None for any other loader.

    Raises UnimplementedError for a version of Accelerate that is not as it was, InvalidArgumentError for a
    loader of `accelerator.skip_first_batches`.
    """
    if type(loader).__module__.partition(".")[0] != "accelerate" or not hasattr(loader, "base_dataloader"):
        return None
    known = vars(loader).get("_samebits")
    if known is None:
        known = loader._samebits = PreparedLoader(loader)
    return known


class PreparedLoader:
    """The batches of a loader of Accelerate, and what that loader does besides giving them."""

    def __init__(self, loader: Any) -> None:
        require_attributes("accelerate", loader)
        self._loader = loader
        self._begun = False
        self._keyed = _keyed(loader)
        self.batches = loader if self._keyed is None else self._keyed
        """A `samebits.data.DataLoader`; or the loader itself, whose batches a resume replays."""

    def begin(self, epoch: int) -> None:
        """Begins an epoch, as the loader's `__iter__`."""
        self.end()
        self._begun = True
        if self._keyed is None:
            self._loader.iteration = epoch
        else:
            self._loader.begin()
            self._loader.set_epoch(epoch)

    def hand_out(self, batch: Any, *, last: bool) -> Any:
        """Returns the batch on the accelerator's device; `accumulate` ends its group with the last one."""
        loader = self._loader
        if self._keyed is None and last:  # the run has read on, to see that it is the last
            remainder = loader.remainder
            loader.end()
            loader.begin()
            loader.remainder = remainder
        loader.end_of_dataloader = last
        if self._keyed is None or loader.device is None:
            return batch
        operations: Any = importlib.import_module("accelerate.utils.operations")
        return operations.send_to_device(batch, loader.device, non_blocking=loader._non_blocking)

    def end(self) -> None:
        """Ends an epoch, after the body of its last batch."""
        if self._begun:
            self._loader.end_of_dataloader = self._begun = False
            self._loader.end()


def _keyed(loader: Any) -> Any:
    """Returns a `samebits.data.DataLoader` of the loader's batches; None if they can only be replayed."""
    torchs = loader.base_dataloader
    batches = torchs.sampler if torchs.batch_sampler is None else torchs.batch_sampler
    if type(loader).__name__ == "SkipDataLoader" or type(batches).__name__ == "SkipBatchSampler":
        raise InvalidArgumentError(
            f"Run.steps(loader={type(loader).__name__}): accelerator.skip_first_batches leaves out batches, "
            "and the run resumes by itself. Give it the loader that accelerator.prepare returned."
        )
    if type(loader).__name__ != "DataLoaderShard" or isinstance(torchs.dataset, torch_data.IterableDataset):
        user_code.warn(
            f"Run.steps(loader={type(loader).__name__}): its batches have no numbers, so that a resume reads "
            "those of its epoch again, up to its own. Give a dataset that has __len__ and __getitem__, and "
            "leave out dispatch_batches=True."
        )
        return None
    changes: dict[str, Any] = {}
    if type(batches).__name__ == "BatchSamplerShard":
        require_attributes("accelerate", batches)
        changes["sampler" if torchs.batch_sampler is None else "batch_sampler"] = ShardSampler(batches)
    inner = _innermost(batches)
    if type(inner).__name__ == "SeedableRandomSampler":  # its order is a function of this seed and the epoch
        changes["seed"] = ((seeds.root_seed() or 0) + inner.initial_seed) % 2**63
    return keyed_loader(torchs, **changes)


def shard_of(loader: Any) -> ShardSampler | None:
    """Returns the batches of this process of a loader that several share; None for another loader."""
    batches = getattr(getattr(loader, "base_dataloader", None), "batch_sampler", None)
    if type(batches).__name__ != "BatchSamplerShard":
        return None
    require_attributes("accelerate", batches)
    return ShardSampler(batches)


def _innermost(sampler: Any) -> Any:
    """Returns the sampler of elements below samplers of batches."""
    while (inner := getattr(sampler, "batch_sampler", getattr(sampler, "sampler", None))) is not None:
        sampler = inner
    return sampler


class ShardSampler(torch_data.Sampler[list[int]]):
    """Samples the batches of this process. All processes shuffle alike: by the seed of the run."""

    def __init__(self, batches: Any) -> None:
        self.num_replicas, self.rank = batches.num_processes, batches.process_index
        per_process = batches.num_processes if batches.split_batches else 1
        self.batch_size = batches.batch_size // per_process
        self._batches = copy.copy(batches)
        self.sampler = _innermost(batches)
        inner = batches.batch_sampler
        if type(self.sampler).__module__ == "torch.utils.data.sampler" and hasattr(inner, "sampler"):
            self.sampler = copy.copy(self.sampler)
            if getattr(self.sampler, "generator", None) is not None:
                self.sampler.generator = None  # Accelerate made it, and would make another after a kill
            self._batches.batch_sampler = copy.copy(inner)
            self._batches.batch_sampler.sampler = self.sampler

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)
