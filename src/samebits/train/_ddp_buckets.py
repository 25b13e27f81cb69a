"""DistributedDataParallel sums gradients in buckets, and rebuilds these after its first backward, in the
order in which the gradients came. A resumed process would sum its first step in the buckets of the beginning;
with three ranks or more the order of a sum depends on the place in its bucket (a ring starts each piece at
another rank), so that step would end with other bits. So every process rebuilds the buckets before its first
step, in one order that the model alone determines.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from samebits.errors import UnimplementedError

_CALLS = ("_rebuild_buckets", "_push_all_rebuilt_params", "_autograd_hook")
_fixed: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def fix_buckets(objects: Iterable[Any]) -> None:
    """Gives every DistributedDataParallel around parameters of `objects` its final buckets, on all ranks.

    Nothing else changes. Where a backward ran before, the buckets stay as it made them, in every process
    alike. Raises `UnimplementedError` for a torch whose DistributedDataParallel lacks the methods for it.
    """
    modules = [part for thing in objects if isinstance(thing, torch.nn.Module) for part in thing.modules()]
    passed = [part for part in modules if isinstance(part, DistributedDataParallel)]
    bare = _parameters(modules) - _parameters(passed)
    for model in [*passed, *_models_around(bare)]:
        if model not in _fixed:
            _fix(model)
            _fixed.add(model)


def is_wrapped(objects: Mapping[str, Any]) -> bool:
    """Returns True if a DistributedDataParallel of this process has parameters of modules of `objects`."""
    modules = [part for one in objects.values() if isinstance(one, torch.nn.Module) for part in one.modules()]
    return dist.is_available() and dist.is_initialized() and bool(_models_around(_parameters(modules)))


def _models_around(parameters: set[int]) -> list[DistributedDataParallel]:
    """Returns this process's models around the parameters with these ids: the run may not have a model.

    They are in an order that all ranks share.
    """
    if not parameters:
        return []
    kinds = _with_subclasses(DistributedDataParallel)
    # `isinstance` may run an object's own code
    found = [one for one in gc.get_objects() if type(one) in kinds]
    around = [model for model in found if parameters & _parameters([model])]
    return sorted(around, key=lambda model: [(name, tuple(p.shape)) for name, p in model.named_parameters()])


def _with_subclasses(kind: type) -> set[type]:
    return {kind}.union(*map(_with_subclasses, kind.__subclasses__()))


def _parameters(modules: Iterable[torch.nn.Module]) -> set[int]:
    return {id(parameter) for module in modules for parameter in module.parameters()}


def _fix(model: DistributedDataParallel) -> None:
    reducer = getattr(model, "reducer", None)
    if reducer is None or model._use_python_reducer:
        return  # each parameter is summed by itself
    if model.find_unused_parameters and not model.static_graph:
        return  # never rebuilt
    if missing := [name for name in _CALLS if not hasattr(reducer, name)]:
        raise UnimplementedError(
            f"Run: DistributedDataParallel of torch {torch.__version__} has no {missing[0]}, so that its "
            "buckets cannot be rebuilt before the first step. Pass find_unused_parameters=True, with "
            "which they never are."
        )
    if reducer._rebuild_buckets():
        return
    if _is_plain(model):
        _backward_of_zeros(model)  # buckets in the order in which most models' gradients come
    else:
        reducer._push_all_rebuilt_params()  # in the order of the parameters, without a backward
    reducer._rebuild_buckets()


def _is_plain(model: DistributedDataParallel) -> bool:
    """Returns True if a backward leaves no state: no static graph's count, no communication hook's state."""
    _, sparse = model._build_params_for_reducer()
    return not (model.static_graph or model.mixed_precision or model._comm_hooks or any(sparse))


def _backward_of_zeros(model: DistributedDataParallel) -> None:
    """Runs a backward in which gradients arrive from the last parameter to the first; calls no user hook."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    model.reducer.prepare_for_forward()
    model.reducer.prepare_for_backward([])
    with torch.enable_grad():
        count = model._get_ddp_logging_data()["num_parameter_tensors"]
        _AllGradientsReady.apply(torch.zeros((), requires_grad=True), model.reducer, count).backward()
    for parameter, grad in kept:
        parameter.grad = grad


class _AllGradientsReady(torch.autograd.Function):
    """A function whose backward notifies a reducer that all gradients have arrived."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, reducer: Any, count: int) -> torch.Tensor:
        ctx.reducer, ctx.count = reducer, count
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[None, None, None]:
        for index in reversed(range(ctx.count)):
            ctx.reducer._autograd_hook(index)
        return None, None, None
