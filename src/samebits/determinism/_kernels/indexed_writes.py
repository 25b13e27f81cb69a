"""Writes to places that an index or a value names: put_, max_unpool and histograms, in index order.

`put_` writes elements of `source` to flat positions of `self`, max-unpooling each pooled value to the place
its index names; of equal positions the last one wins. Under torch's own switch the rest of them (index_put,
index_copy, index_add, scatter, embedding backward, segment reductions, bincount) have the same bits for any
number of threads; `make review` measures them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from samebits.determinism._kernels import histogram
from samebits.determinism._kernels.out_argument import out_form
from samebits.determinism._replacement import always, replacements

_LAST = torch.channels_last


def put_(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """`aten::put_` by ops that keep the index's order: `scatter_` of one row on the CPU, else `index_put_`.

    Rule for duplicates: the last write in index order (row-major over `index`) wins; with `accumulate` they
    are added in that order. `index` holds int64 positions in `self` seen as one row, negative ones from the
    end; `source` has as many elements. `scatter_` works on one row with one thread (0.3 to 0.8 of the time of
    torch's `put_`, measured at 10^6 elements); `index_put_` sorts on CUDA under the switch.

    Raises:
        RuntimeError: dtypes or numbers of elements differ, as torch's own `put_`.
        IndexError, RuntimeError: a position is outside `self` (a device-side assert on CUDA).
    """
    torch._check(
        self.dtype == source.dtype, lambda: f"put_(): self is {self.dtype}, source is {source.dtype}"
    )
    torch._check(index.dtype == torch.int64, lambda: f"put_(): index must be int64, but is {index.dtype}")
    torch._check(
        index.numel() == source.numel(),
        lambda: f"put_(): {source.numel()} elements of source for {index.numel()} of index",
    )
    flat = self.contiguous().view(-1)
    write = write_in_order_cpu if self.is_cpu and not accumulate else write_in_order
    write(flat, index.reshape(-1), source.reshape(-1), accumulate)
    if not self.is_contiguous():
        self.copy_(flat.view(self.shape))
    return self


def write_in_order(flat: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> None:
    """By `index_put_`, which under the switch sorts on CUDA and runs serially on the CPU."""
    flat.index_put_((index,), source, accumulate)


def write_in_order_cpu(flat: Tensor, index: Tensor, source: Tensor, accumulate: bool) -> None:
    """By `scatter_`, which writes one row with one thread, also without the switch."""
    flat.scatter_(0, _from_the_start(index, flat.numel()), source)


def _from_the_start(index: Tensor, size: int) -> Tensor:
    """Returns `index` with negative positions counted from the start: itself when it has none, as usual."""
    if index.numel() == 0 or int(index.min()) >= 0:
        return index
    return torch.where(index < 0, index + size, index)


def max_unpool2d(self: Tensor, indices: Tensor, output_size: Sequence[int]) -> Tensor:
    """`aten::max_unpool2d` of (N, C, h, w) or (C, h, w) into `output_size` (H, W); zeros elsewhere.

    Rule for duplicates within one plane: the last write in row-major order of `indices` wins.
    `max_unpool1d` comes here too, with H = 1.

    Raises:
        RuntimeError: wrong shapes or dtypes, or an index outside its plane (a device-side assert on CUDA).
    """
    return _unpool(self, indices, output_size, "max_unpool2d")


def max_unpool3d(
    self: Tensor, indices: Tensor, output_size: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> Tensor:
    """`aten::max_unpool3d` of (N, C, d, h, w) or (C, d, h, w) into (D, H, W); rule, errors: as in 2d."""
    torch._check(
        len(stride) == len(padding) == 3, lambda: "max_unpool3d(): stride and padding need 3 numbers"
    )
    torch._check(min(stride) > 0, lambda: f"max_unpool3d(): strides must be positive, but are {list(stride)}")
    return _unpool(self, indices, output_size, "max_unpool3d")


def _unpool(self: Tensor, indices: Tensor, output_size: Sequence[int], name: str) -> Tensor:
    dims = 3 if name.endswith("3d") else 2
    _check(self, indices, output_size, dims, name)
    source, index, size = self.flatten(-dims), indices.flatten(-dims), math.prod(output_size)
    # Planes are independent, each written in order: on the CPU by one thread, on CUDA after a stable sort.
    if dims == 2 and self.dim() == 4 and not self.is_contiguous() and self.is_contiguous(memory_format=_LAST):
        output = self.new_zeros((len(self), size, self.shape[1]))
        output.scatter_(1, index.transpose(1, 2), source.transpose(1, 2))
        return output.view(len(self), *output_size, self.shape[1]).permute(0, 3, 1, 2)
    output = self.new_zeros((*source.shape[:-1], size))
    return output.scatter_(-1, index, source).unflatten(-1, tuple(output_size))


def _check(self: Tensor, indices: Tensor, output_size: Sequence[int], dims: int, name: str) -> None:
    torch._check(
        indices.dtype == torch.int64, lambda: f"{name}(): indices must be int64, not {indices.dtype}"
    )
    torch._check(
        indices.shape == self.shape,
        lambda: f"{name}(): indices are {tuple(indices.shape)}, the input is {tuple(self.shape)}",
    )
    torch._check(
        len(output_size) == dims,
        lambda: f"{name}(): output_size needs {dims} numbers, but is {list(output_size)}",
    )
    torch._check(
        self.dim() in (dims + 1, dims + 2) and 0 not in self.shape[1:],
        lambda: (
            f"{name}(): input must have {dims + 1} or {dims + 2} dimensions, none but the batch empty, "
            f"but is {tuple(self.shape)}"
        ),
    )


_LAST_WINS = "two threads write to one place, or torch refuses: the last write in index order wins"
REPLACEMENTS = (
    *replacements(("put_",), always(put_), _LAST_WINS),
    *replacements(("max_unpool2d",), always(max_unpool2d), _LAST_WINS),
    *replacements(("max_unpool3d",), always(max_unpool3d), _LAST_WINS),
    *replacements(("max_unpool2d.out",), always(out_form(max_unpool2d, "out")), _LAST_WINS),
    *replacements(("max_unpool3d.out",), always(out_form(max_unpool3d, "out")), _LAST_WINS),
    *histogram.REPLACEMENTS,
)
