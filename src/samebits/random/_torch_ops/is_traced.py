"""The check that a call must go through the dispatcher: a tracer cannot see our kernels write to an address."""

from __future__ import annotations

from torch import Tensor
from torch._C import (
    _are_functorch_transforms_active,
    _is_torch_function_mode_enabled,
    _is_tracing,
    _len_torch_dispatch_stack,
)
from torch.compiler import is_dynamo_compiling


def is_traced(key: Tensor) -> bool:
    """Returns True if the ops of a function of `key` are watched, or the key has no memory; 0.2 us if not.

    Dynamo; make_fx and torch.export (before dispatch they are a mode of torch functions), FakeTensorMode and every
    other mode; torch.func's transforms; torch.jit.trace; subclasses of tensors; the meta device.
    """
    return (
        is_dynamo_compiling()
        or type(key) is not Tensor
        or _len_torch_dispatch_stack() > 0
        or _are_functorch_transforms_active()
        or _is_torch_function_mode_enabled()
        or _is_tracing()
        or key.is_meta
    )
