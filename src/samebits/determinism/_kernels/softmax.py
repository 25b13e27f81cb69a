"""Softmax and its gradient, whose bits do not depend on the thread count.

Along any dimension but the last, torch gives threads runs of columns, and the ends of a run, less than a vector, are
rounded otherwise: here the columns are padded so that every thread's run is whole vectors. Along the last dimension the
gradient of rows that are no whole vectors has other bits on several threads than on one: here rows are a kernel of
ours (the gradient is y (g - sum(g y))).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native.kernel_threads import float32_at, on_team
from samebits._native.torch_threads import on_single_thread
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._kernels.out_argument import into
from samebits.determinism._replacement import replacements

_SMALL = 1 << 14
"""Elements that are left to one thread."""
_VECTOR = 64
"""A multiple of the columns that one turn of any kernel's vector loop takes."""
_LANES = 16
"""float32 numbers of a vector."""
_PIECE = 1 << 14
"""Elements of the rows of one chunk, about."""


def _softmax(kernel: Kernel) -> Kernel:
    whole = on_single_thread(kernel)

    def softmax(self: Tensor, dim: int, half_to_float: bool, *, out: Tensor | None = None) -> Tensor:
        kwargs = {} if out is None else {"out": out}
        if _is_last(self, dim):
            return kernel(self, dim, half_to_float, **kwargs)
        if self.numel() <= _SMALL:
            return whole(self, dim, half_to_float, **kwargs)
        moved = _Moved(self.shape, dim)
        result = moved.back(kernel(moved.there(self), moved.dim, half_to_float))
        return result if out is None else into(out, result)

    return softmax


def _gradient(kernel: Kernel) -> Kernel:
    whole = on_single_thread(kernel)

    def rows(grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        ours = {grad.dtype, output.dtype, dtype} == {torch.float32} and output.shape[-1] % _LANES
        return _of_rows(grad.contiguous(), output.contiguous()) if ours else kernel(grad, output, dim, dtype)

    def gradient(
        grad_output: Tensor,
        output: Tensor,
        dim: int,
        input_dtype: torch.dtype,
        *,
        grad_input: Tensor | None = None,
    ) -> Tensor:
        there = -output.dim() <= dim < output.dim()
        if output.numel() <= _SMALL or grad_output.shape != output.shape or not there:
            kwargs = {} if grad_input is None else {"grad_input": grad_input}
            return whole(grad_output, output, dim, input_dtype, **kwargs)
        if dim in (-1, output.dim() - 1):
            result = rows(grad_output, output, dim, input_dtype)
        else:
            moved = _Moved(output.shape, dim)
            run = rows if moved.dim == 2 else kernel
            result = moved.back(run(moved.there(grad_output), moved.there(output), moved.dim, input_dtype))
        return result if grad_input is None else into(grad_input, result)

    return gradient


def _is_last(x: Tensor, dim: int) -> bool:
    """Also for a dimension that there is not: torch's kernel says so."""
    return dim in (-1, x.dim() - 1) or not -x.dim() <= dim < x.dim()


class _Moved:
    """A tensor as (outer, size of the dimension, columns), the columns padded to whole vectors for every thread.

    A few columns are not padded: the dimension becomes the last one, where rows are whole.
    """

    def __init__(self, shape: torch.Size, dim: int) -> None:
        dim %= len(shape)
        self._shape = shape
        self._flat = (shape[:dim].numel(), shape[dim], shape[dim + 1 :].numel())
        self.dim = 1 if self._flat[2] >= _VECTOR else 2
        unit = _VECTOR * torch.get_num_threads()
        self._columns = -(-self._flat[2] // unit) * unit

    def there(self, x: Tensor) -> Tensor:
        x = x.contiguous().view(self._flat)
        if self.dim == 2:
            return x.transpose(1, 2).contiguous()
        if self._columns == self._flat[2]:
            return x
        wide = x.new_zeros((*self._flat[:2], self._columns))
        wide[..., : self._flat[2]] = x
        return wide

    def back(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2) if self.dim == 2 else x[..., : self._flat[2]]
        return x.contiguous().view(self._shape)


def _rows(chunk: int, args: Any) -> None:
    """args: 1-3 addresses of the result, g and y; 4 rows; 5 columns; 6 rows a chunk."""
    rows, columns = args[4], args[5]
    result = native.carray(float32_at(args[1]), (rows, columns))
    grad = native.carray(float32_at(args[2]), (rows, columns))
    output = native.carray(float32_at(args[3]), (rows, columns))
    for row in range(chunk * args[6], min(rows, (chunk + 1) * args[6])):
        g, y, out = grad[row], output[row], result[row]
        total = np.float32(0)
        for j in range(columns):
            total += g[j] * y[j]
        for j in range(columns):
            out[j] = y[j] * (g[j] - total)


_run_rows = on_team(_rows, reassociate=True)


def _of_rows(grad: Tensor, output: Tensor) -> Tensor:
    columns = output.shape[-1]
    rows = output.numel() // columns
    piece = max(1, _PIECE // columns)
    result = torch.empty_like(output)
    _run_rows(-(-rows // piece), result.data_ptr(), grad.data_ptr(), output.data_ptr(), rows, columns, piece)
    return result


_REASON = "torch rounds the ends of each thread's columns otherwise than the rest: padded to whole vectors, rows by a kernel of ours"

REPLACEMENTS = (
    *replacements(["_softmax", "_softmax.out"], _softmax, _REASON, only_threads=True),
    *replacements(
        ["_softmax_backward_data", "_softmax_backward_data.out"], _gradient, _REASON, only_threads=True
    ),
)
