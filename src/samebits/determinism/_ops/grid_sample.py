"""grid_sample of a contiguous grid: torch's kernel adds points in the order of the grid's memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels import grid_sample
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import replacements


def _contiguous(kernel: Kernel) -> Kernel:
    ours = grid_sample.safe(kernel)

    def grid_sampler(*args: Any) -> Any:
        takes("grid_sampler", args[0].dtype)
        return ours(*(x.contiguous() if isinstance(x, Tensor) else x for x in args))

    return grid_sampler


REPLACEMENTS = replacements(
    grid_sample.OPS,
    _contiguous,
    "points are added in the order of the grid's memory: made contiguous; half types are computed in "
    "float32, NaN is -1",
)
