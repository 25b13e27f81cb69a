"""Helpers of all families: the precision sums are made in, and the in-place form of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from samebits.determinism._dispatcher import Kernel

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype to sum in, as in torch's CUDA kernels: float32 for float16 and bfloat16."""
    return _WIDE.get(dtype, dtype)


def in_place_form(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns `function` as its in-place overload: the first argument takes the result."""

    def write(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return self.copy_(function(self, *args, **kwargs))

    return write


def where(refused: Callable[..., bool], function: Callable[..., Any]) -> Callable[[Kernel], Kernel]:
    """Returns a `Replacement.make`: ours for the arguments that torch refuses, torch's kernel for others."""

    def make(kernel: Kernel) -> Kernel:
        def choose(*args: Any, **kwargs: Any) -> Any:
            return (function if refused(*args, **kwargs) else kernel)(*args, **kwargs)

        return choose

    return make
