"""grid_sample of bfloat16 and float16: computed in float32, since torch's kernel computes addresses in the type of the grid.

There places beyond 65,504 (float16) or 256 (bfloat16) are other places, also outside of the tensor, and then the result changes
from call to call. In float32 and float64 torch's kernel stays.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._machine_invariant.operands import takes
from samebits.determinism._replacement import replacements

_HALVES = (torch.bfloat16, torch.float16)


def _in_float32(kernel: Kernel) -> Kernel:
    def grid_sampler(*args: Any) -> Any:
        kind = args[0].dtype
        takes("grid_sampler", kind)
        if kind not in _HALVES:
            return kernel(*args)
        made = kernel(*(x.float() if isinstance(x, Tensor) and x.dtype == kind else x for x in args))
        if isinstance(made, Tensor):
            return made.to(kind)
        return tuple(None if x is None else x.to(kind) for x in made)

    return grid_sampler


REPLACEMENTS = replacements(
    ("grid_sampler_2d", "grid_sampler_2d_backward", "grid_sampler_3d", "grid_sampler_3d_backward"),
    _in_float32,
    "torch computes addresses in the type of the grid: half types are computed in float32",
    only_machine=True,
)
