"""Refusals of logical shards: one message each, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data.distributed import DistributedSampler

from samebits._dtensors import is_dtensor
from samebits.data._resumable import Resumable
from samebits.distributed._fsdp2 import fsdp_modules, reshard
from samebits.errors import InvalidArgumentError, UnimplementedError

ELEMENTWISE = (
    *("SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adamax"),
    *("Adagrad", "Adadelta", "ASGD", "RMSprop"),
)
"""Optimizers of torch that update an element by its own gradient and state alone (Rprop takes no rows)."""


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
    _check_sharded(objects, call)
    for name, parameter in named_parameters(objects):
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
    if type(module).__name__ in ("FullyShardedDataParallel", "DeepSpeedEngine"):
        raise UnimplementedError(
            f"{call}: {whole} is a {type(module).__name__}, which sums gradients in an order that follows "
            "the number of processes. Shard it with torch.distributed.fsdp.fully_shard."
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


def _check_sharded(objects: Mapping[str, Any], call: str) -> None:
    """Raises for DTensors, and for uses of FSDP2, whose sums do not have the bits of one process."""
    modules = fsdp_modules(objects)
    reshard(modules)  # so that the modules have the parameters that the optimizer has
    known: set[int] = set()
    for name, module in modules:
        state = module._get_fsdp_state()
        for group in state._fsdp_param_groups:
            if why := _unfit(group, len(state._fsdp_param_groups)):
                raise UnimplementedError(f"{call}: {name} (fully_shard) {why}.")
            known.update(id(one.sharded_param) for one in group.fsdp_params)
    for name, parameter in named_parameters(objects):
        if is_dtensor(parameter) and id(parameter) not in known:
            raise UnimplementedError(
                f"{call}: {name} is a DTensor that fully_shard has not made, or its module is no object of "
                "the run. Tensor, pipeline and expert parallelism are not supported: their sums follow the "
                "number of processes. Leave them out, and give the whole model to samebits.Run."
            )
    if modules:
        _check_wrappers(objects, call)
        for name, thing in objects.items():
            _check_optimizer(name, thing, objects, call)


def _unfit(group: Any, groups: int) -> str:
    """Returns why the sum cannot be made in the order of shards for these parameters of a module, if so."""
    mesh = group.mesh_info.mesh
    placed = {str(one.sharded_param.placements) for one in group.fsdp_params}
    own = group.fsdp_params
    on_meta = [one._module_info.param_name for one in own if one.sharded_param.device.type == "meta"]
    if not hasattr(group, "reduce_scatter_unused_params"):
        return f"needs torch 2.13, and this is {torch.__version__}"
    if groups > 1:
        return "has several meshes (shard_placement_fn). Shard all of its parameters over one mesh"
    if mesh.ndim > 1 or group._is_hsdp:
        return (
            "has a mesh of several dimensions (HSDP, tensor parallelism), whose sums follow the number of "
            "processes. Give fully_shard a mesh of one dimension, over all ranks"
        )
    if mesh.size() != (dist.get_world_size() if dist.is_initialized() else 1):
        return "has a mesh of some of the ranks. Give fully_shard a mesh over all of them"
    if placed - {"(Shard(dim=0),)"}:
        return "is not sharded by rows (shard_placement_fn). Leave shard_placement_fn out"
    if on_meta:
        return (
            f"has parameters on the meta device, which nobody has filled: {', '.join(on_meta[:3])}. Build "
            "the model on a real device, and call fully_shard then: weights that are drawn when they are "
            "sharded follow the number of processes"
        )
    if type(group.offload_policy).__name__ == "CPUOffloadPolicy":
        return "has a CPUOffloadPolicy, which is not supported. Leave offload_policy out"
    if type(group._reduce_scatter_comm).__name__ not in ("DefaultReduceScatter", "_ModuleSum"):
        return (
            "has a reduce-scatter of its own (set_custom_reduce_scatter, set_symm_mem_for_comm). Leave it out"
        )
    if group.gradient_divide_factor not in (None, 1.0) or group._all_reduce_hook is not None:
        return (
            "scales gradients (set_gradient_divide_factor), or has a hook of set_all_reduce_hook. Leave it "
            "out, and divide the loss"
        )
    if not group.reduce_grads:
        return "has set_requires_gradient_sync(False). Leave it out: each shard's gradient is added"
    return ""


def _check_wrappers(objects: Mapping[str, Any], call: str) -> None:
    """Raises for what stands around a model of FSDP2, or around its optimizer."""
    for name, thing in objects.items():
        package = type(thing).__module__.split(".")[0]
        if package in ("accelerate", "lightning", "lightning_fabric"):
            raise UnimplementedError(
                f"{call}: {name} is a {type(thing).__name__} of {package}, which adds the gradients of FSDP2 "
                "in its own way. Call torch's fully_shard instead of its prepare or setup, and give "
                "samebits.Run torch's optimizer."
            )
        for path, module in thing.named_modules() if isinstance(thing, torch.nn.Module) else ():
            compiled = type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None
            if compiled:
                raise UnimplementedError(
                    f"{call}: {'.'.join(part for part in (name, path) if part)} is compiled, which is not "
                    "supported with fully_shard. Leave torch.compile out."
                )


def _check_optimizer(name: str, thing: Any, objects: Mapping[str, Any], call: str) -> None:
    """Raises for an optimizer with other parameters than the sharded ones, or that mixes their elements."""
    own = parameters_of_optimizer(thing)
    if any(map(is_dtensor, own)):
        kind = type(thing)
        known = kind.__name__ in ELEMENTWISE and kind.__module__.startswith("torch.optim.")
        if known and any(group.get("fused") for group in thing.param_groups):
            raise UnimplementedError(
                f"{call}: {name} is a {kind.__name__}(fused=True), whose kernel computes the last elements "
                "of a tensor in another way, and those of a rank's rows are others. Leave fused out."
            )
        if not known and not kind.__module__.startswith("samebits.rounding."):
            raise UnimplementedError(
                f"{call}: {name} is a {kind.__module__}.{kind.__name__}, and only optimizers that update "
                "each element by itself have the same bits however rows are shared out: those of torch.optim "
                f"named {', '.join(ELEMENTWISE)}, and samebits.rounding.optim."
            )
    modules = [one for one in objects.values() if isinstance(one, torch.nn.Module)]
    parameters = [parameter for module in modules for parameter in module.parameters()]
    known_ids = {id(parameter) for parameter in parameters}
    shapes = {parameter.shape for parameter in parameters if is_dtensor(parameter)}
    for parameter in own:
        if id(parameter) not in known_ids and not is_dtensor(parameter) and parameter.shape in shapes:
            raise InvalidArgumentError(
                f"{call}: {name} has a parameter of shape {tuple(parameter.shape)} that no module has: it "
                "was made before fully_shard, which replaces the parameters. Make the optimizer after it."
            )
