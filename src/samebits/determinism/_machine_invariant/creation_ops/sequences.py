"""arange, range and linspace of floating-point numbers, whose vector code adds a lane's number to the first of its vector.

Element i is start + i step, in float64: the product is rounded, then the sum, then the result to its type. linspace has
step = (end - start) / (n - 1), and its second half counts from the end: end - (n - 1 - i) step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import replacements


def _counting(kernel: Kernel) -> Kernel:
    """arange.start_out and range.out: torch's kernel checks the arguments and gives `out` its length."""

    def counting(start: Any, end: Any, step: Any = 1, *, out: Tensor) -> Tensor:
        kernel(start, end, step, out=out)
        if not out.is_floating_point():
            return out
        return out.copy_(_multiples(out.numel(), float(step)).add_(float(start)).view(out.shape))

    return counting


def _linspace(kernel: Kernel) -> Kernel:
    def linspace(start: Any, end: Any, steps: int, *, out: Tensor) -> Tensor:
        kernel(start, end, steps, out=out)
        if not out.is_floating_point() or steps < 2:
            return out
        step, half = (float(end) - float(start)) / (steps - 1), steps // 2
        values = _multiples(steps, step)
        late = values[: steps - half].flip(0).neg_().add_(float(end))
        values.add_(float(start))[half:] = late
        return out.copy_(values.view(out.shape))

    return linspace


def _multiples(count: int, step: float) -> Tensor:
    """Returns 0, step, 2 step, ... in float64."""
    return torch.arange(count, dtype=torch.int64).double().mul_(step)


_REASON = "torch adds the lanes of a vector to its first element: ours rounds start + i step once per operation, in float64"

REPLACEMENTS = (
    *replacements(["arange.start_out", "range.out"], _counting, _REASON),
    *replacements(["linspace.out"], _linspace, _REASON),
)
