"""torch's rules for `out=`: the right dtype or an error; the right shape, or a warning and a new one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from samebits._inspect import user_code


def into(out: Tensor, result: Tensor) -> Tensor:
    """`out` with the values of `result`, after the checks of torch's structured kernels."""
    if out.dtype != result.dtype:
        raise RuntimeError(f"Expected out tensor to have dtype {result.dtype}, but got {out.dtype} instead")
    return cast_into(out, result)


def cast_into(out: Tensor, result: Tensor) -> Tensor:
    """As `into`, for the ops whose result torch casts to the dtype of `out`."""
    if not torch.can_cast(result.dtype, out.dtype):
        torch.add(result.new_empty(0), 0.0, out=out.new_empty(0))  # raises as torch's iterator does
    if out.shape != result.shape:
        resize(out, result.shape)
    return out.copy_(result)


def resize(out: Tensor, shape: torch.Size) -> None:
    """Gives `out` another shape, with torch's warning if it had elements."""
    if out.numel():
        user_code.warn(
            f"An output with one or more elements was resized since it had shape {list(out.shape)}, "
            f"which does not match the required output shape {list(shape)}.",
            UserWarning,
        )
    out.resize_(shape)


def out_form(function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Returns `function` as its overload with out arguments `names`, which it checks, resizes and fills."""

    def fill(*args: Any, **kwargs: Any) -> Any:
        targets = tuple(kwargs.pop(name) for name in names)
        results = function(*args, **kwargs)
        for target, result in zip(targets, (results,) if len(names) == 1 else results, strict=True):
            into(target, result)
        return targets[0] if len(names) == 1 else targets

    return fill
