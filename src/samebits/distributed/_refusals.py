"""Refusals of logical shards: one message each, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from samebits.data._resumable import Resumable
from samebits.errors import InvalidArgumentError, UnimplementedError


def check_loader(loader: Any, shards: int, call: str) -> None:
    """Raises `InvalidArgumentError` for a loader that does not give global batches, to be shared out."""
    call = f"{call}(shards={shards})"
    if not isinstance(loader, Resumable):
        raise InvalidArgumentError(
            f"{call}: a {type(loader).__name__} does not say which rows its batches have, so that no process "
            "could load its shards alone. Pass a samebits.data.DataLoader (same arguments, the global "
            "batch_size, no sampler that shares out), or a samebits.data.Pipeline."
        )
    sampler = getattr(loader, "sampler", None)
    for one in (sampler, getattr(loader, "batch_sampler", None), getattr(sampler, "sampler", None)):
        if isinstance(one, DistributedSampler) or getattr(one, "num_replicas", 1) > 1:
            raise InvalidArgumentError(
                f"{call}: the loader has a {type(one).__name__}, and shards share each batch out already. "
                "Leave it out; shuffle=True shuffles, and batch_size is that of the global batch."
            )
    if getattr(loader, "batch_size", 0) is None and getattr(loader, "_auto_collation", True) is False:
        raise InvalidArgumentError(
            f"{call}: with batch_size=None an item of the dataset is a batch, whose rows are not known. Give "
            "the DataLoader a batch_size, the global one, and the dataset single rows."
        )
    if loader._options.world_size is not None and not loader._options.workers_are_counted:
        raise InvalidArgumentError(
            f"{call}: the pipeline has with_options(rank=..., world_size=...), and shards share each batch "
            "out already. Leave it out."
        )


def check_modules(objects: Mapping[str, Any], wrapped: bool, call: str) -> None:
    """Raises for modules among `objects` whose gradients or statistics are summed in another way.

    `wrapped`: their parameters are in a DistributedDataParallel that the run was not given.
    """
    if wrapped:
        raise _wrapper_error("model", "DistributedDataParallel", call)
    for name, thing in objects.items():
        for path, module in thing.named_modules() if isinstance(thing, torch.nn.Module) else ():
            _check_module(name, path, module, call)
    for name, parameter in named_parameters(objects):
        if type(parameter).__name__ == "DTensor":
            raise UnimplementedError(
                f"{call}: {name} is sharded over the ranks (fully_shard, tensor parallelism), which the next "
                "version supports. Train replicas: leave fully_shard out."
            )
        if getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise UnimplementedError(
                f"{call}: {name} has a hook of register_post_accumulate_grad_hook, which would see the "
                "gradient of one shard alone (an optimizer in backward, say). Remove it, and step after the "
                "loop over the shards."
            )


def named_parameters(objects: Mapping[str, Any]) -> list[tuple[str, torch.nn.Parameter]]:
    """Returns the parameters of modules, and then those that only optimizers have, each once."""
    found: dict[int, tuple[str, torch.nn.Parameter]] = {}
    for name, thing in objects.items():
        for path, parameter in thing.named_parameters() if isinstance(thing, torch.nn.Module) else ():
            found.setdefault(id(parameter), (f"{name}.{path}", parameter))
    for name, thing in objects.items():
        for number, parameter in enumerate(parameters_of_optimizer(thing)):
            found.setdefault(id(parameter), (f"parameter {number} of {name}", parameter))
    return list(found.values())


def parameters_of_optimizer(thing: Any) -> list[torch.nn.Parameter]:
    """Returns the parameters of an optimizer's groups; none of another object."""
    return [parameter for group in getattr(thing, "param_groups", ()) for parameter in group["params"]]


def _check_module(name: str, path: str, module: torch.nn.Module, call: str) -> None:
    whole = ".".join(part for part in (name, path) if part)
    if isinstance(module, DistributedDataParallel | DataParallel):
        raise _wrapper_error(whole, type(module).__name__, call)
    if isinstance(module, torch.nn.SyncBatchNorm):
        raise UnimplementedError(
            f"{call}: {whole} is a SyncBatchNorm, whose statistics would follow the number of processes. Use "
            "torch.nn.BatchNorm: each shard has its own statistics, and those of shard 0 are kept."
        )
    if getattr(module, "sparse", False) is True:
        raise UnimplementedError(
            f"{call}: {whole} ({type(module).__name__}) has sparse gradients, which cannot be sent by "
            "slices. Make it with sparse=False."
        )


def _wrapper_error(name: str, kind: str, call: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{call}: {name} is wrapped in {kind}, which sums gradients in an order that follows the number of "
        "processes. Leave the wrapper out: the shards' sum takes its place."
    )
