"""The choice of kernels by a key's device."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from samebits.errors import UnimplementedError
from samebits.rounding._cpu import rounding_kernels

_CPU: Any = rounding_kernels


def kernels(caller: str, key: torch.Tensor) -> Any:
    """Returns the module whose `stochastic_round` rounds tensors on the key's device.

    Raises `UnimplementedError`, naming samebits.rounding.`caller`, for a device without kernels of the same bits, and for
    CUDA without Triton, which is imported here for the first time.
    """
    if key.is_cpu:
        return _CPU
    cure = (
        f"round on the CPU and move the result: {caller}(x.cpu(), dtype, key.cpu()).to({str(key.device)!r})"
    )
    if not key.is_cuda:
        raise UnimplementedError(
            f"samebits.rounding.{caller} has no kernel for {key.device} that gives the bits of the CPU; {cure}"
        )
    try:
        return import_module("samebits.rounding._triton.rounding_launchers")
    except ModuleNotFoundError as missing:
        if missing.name != "triton":
            raise
        raise UnimplementedError(
            f"samebits.rounding.{caller} on CUDA needs Triton, which is not installed: pip install triton, or {cure}"
        ) from None
