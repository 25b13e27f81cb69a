"""Fake tensors (torch.compile, make_fx, FakeTensorMode): ops that are refused on CUDA raise our errors.

Some of the functions by which torch computes shapes alert for every tensor that is not known to be on the
CPU, or for every tensor at all (`max_unpool2d`). They compute no values, so that alert is suppressed; the
alert of an op that met a fake CUDA tensor and has no kernel of ours becomes our error.

An in-place op of a tensor with data and one on "meta" is an error, too: torch only computes its shape.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from samebits._inspect.patching import Patches, stand_in
from samebits._inspect.user_call import calling_op
from samebits.determinism import _cuda_loading as cuda_loading
from samebits.determinism._dispatcher import Kernel, KernelOverrides, kernels, overload
from samebits.determinism._guards import refused_ops
from samebits.errors import InvalidArgumentError

_thread = threading.local()
"""`alerted`: True if the op of a fake tensor that runs in this thread has alerted."""


def watch(patches: Patches, *, warn: bool) -> None:
    """Installs the guard for the switch: with `warn` such an op warns once."""
    prims = torch._prims_common
    patches.put(prims, "alert_not_deterministic", stand_in(prims.alert_not_deterministic, _note))
    patches.put(FakeTensorMode, "dispatch", _judge_dispatch(FakeTensorMode.dispatch, warn))


def _note(caller: str) -> None:
    """Replaces torch's function, which raises."""
    _thread.alerted = True


def _judge_dispatch(dispatch: Callable[..., Any], warn: bool) -> Callable[..., Any]:
    @functools.wraps(dispatch)
    def judged(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        if refused_ops.cure_of(name, "CUDA") is None or not _on_cuda((args, kwargs)):
            return dispatch(self, func, types, args, kwargs)
        cached, self.cache_enabled = self.cache_enabled, False  # a cached result would not alert
        outer, _thread.alerted = getattr(_thread, "alerted", False), False
        try:
            return dispatch(self, func, types, args, kwargs)
        finally:
            self.cache_enabled = cached
            alerted, _thread.alerted = _thread.alerted, outer
            if alerted and not _is_ours(name):
                refused_ops.raise_or_warn(name, "CUDA", warn=warn)

    return judged


def refuse_meta_operands(overrides: KernelOverrides) -> None:
    """Puts the error for an operand on "meta" in front of the in-place ops that take one."""
    for name in _in_place_ops():
        overrides.put(name, "Meta", functools.partial(_refuse_data, name))


@functools.cache
def _in_place_ops() -> list[str]:
    """Returns the in-place overloads of aten with two tensors or more (10 ms)."""
    found = (name for name in kernels("Meta") if name.startswith("aten::"))
    found = (name for name in found if name.partition(".")[0].endswith("_"))
    schemas = {name: overload(name)._schema for name in found}
    types = {name: [str(x.type) for x in one.arguments] for name, one in schemas.items() if one.is_mutable}
    return [name for name, (first, *more) in types.items() if first == "Tensor" and "Tensor" in str(more)]


def _refuse_data(name: str, original: Kernel) -> Kernel:
    # with fake tensors torch would find a kernel in Python by its name again, and that is ours
    kernel = overload(name).py_kernels.get(torch._C.DispatchKey.Meta, original)

    def refused(target: Any, *args: Any, **kwargs: Any) -> Any:
        if target.device.type != "meta" and not isinstance(target, FakeTensor):
            raise InvalidArgumentError(
                f"{calling_op(name)} would leave the tensor as it is: an operand is on 'meta', without "
                "data. Load it first: `model.to_empty(device=...)` and load_state_dict, or "
                "load_state_dict(state, assign=True)."
            )
        return kernel(target, *args, **kwargs)

    return refused


def _on_cuda(values: Any) -> bool:
    leaves = pytree.tree_leaves(values)
    return any(isinstance(leaf, FakeTensor) and leaf.fake_device.type == "cuda" for leaf in leaves)


def _is_ours(name: str) -> bool:
    """Returns True if a verified formulation replaces the op on a GPU."""
    return cuda_loading.computes(name, (it.op for it in cuda_loading.installable()))
