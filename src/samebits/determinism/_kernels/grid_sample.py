"""grid_sample: half types are computed in float32; the gradient takes NaN in the grid as -1, as the result.

Torch's kernel computes addresses in the type of the grid. Places beyond 256 (bfloat16) or 65,504 (float16)
are then other places, also outside of the tensor: results change from call to call, and gradients are written
where they destroy the heap. In every type its gradient of a bilinear sample with padding "border" or
"reflection" takes NaN for an address.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import replacements

OPS = ("grid_sampler_2d", "grid_sampler_2d_backward", "grid_sampler_3d", "grid_sampler_3d_backward")
_HALVES = (torch.bfloat16, torch.float16)
_BILINEAR, _BORDER, _REFLECTION = 0, 1, 2


def safe(kernel: Kernel) -> Kernel:
    """The kernel, where no type and no number of the grid makes it leave the tensor."""

    def grid_sampler(*args: Any) -> Any:
        kind = args[0].dtype
        if kind in _HALVES:
            args = tuple(x.float() if isinstance(x, Tensor) and x.dtype == kind else x for x in args)
        # (grad, input, grid, mode, padding, ...)
        if len(args) == 7 and args[3] == _BILINEAR and args[4] in (_BORDER, _REFLECTION):
            args = (*args[:2], _finite(args[2], args[1], args[4]), *args[3:])
        made = kernel(*args)
        if kind not in _HALVES:
            return made
        if isinstance(made, Tensor):
            return made.to(kind)
        return tuple(None if x is None else x.to(kind) for x in made)

    return grid_sampler


def _finite(grid: Tensor, x: Tensor, padding: int) -> Tensor:
    """The grid with -1 for NaN and, if reflected, for places that overflow, as torch takes them."""
    if padding == _BORDER:
        return grid.nan_to_num(-1.0)
    limit = torch.finfo(grid.dtype).max / (2 * max(x.shape))
    return torch.where(grid.abs() < limit, grid, -1.0)


REPLACEMENTS = replacements(
    OPS,
    safe,
    "torch computes addresses in the type of the grid, and of NaN: half types are computed in float32, NaN "
    "is -1",
)
