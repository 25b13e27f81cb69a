"""torch's rules for `out=`: the right dtype or an error, and the right shape, with a warning if it had another."""

from __future__ import annotations

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
        if out.numel():
            user_code.warn(
                f"An output with one or more elements was resized since it had shape {list(out.shape)}, which does not "
                f"match the required output shape {list(result.shape)}.",
                UserWarning,
            )
        out.resize_(result.shape)
    return out.copy_(result)
