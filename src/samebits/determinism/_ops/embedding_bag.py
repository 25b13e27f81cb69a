"""embedding_bag: rows times weights, in float32 (float64 for float64), added in the order of indices.

Torch's kernels call the vendor's axpy and dot, or generated code that fuses the product with the addition.
The largest of a bag (mode 2) is torch's; in its gradient index_add adds.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.reductions import MEMORY
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._ops.operands import takes
from samebits.determinism._replacement import or_torchs, replacements

_MEAN, _MAX = 1, 2


def _forward(kernel: Kernel) -> Kernel:
    def embedding_bag(
        weight: Tensor,
        indices: Tensor,
        offsets: Tensor,
        scale_grad_by_freq: bool = False,
        mode: int = 0,
        sparse: bool = False,
        per_sample_weights: Tensor | None = None,
        include_last_offset: bool = False,
        padding_idx: int = -1,
    ) -> Any:
        takes("_embedding_bag", weight.dtype)
        out, *others = kernel(
            *(weight, indices, offsets, scale_grad_by_freq, mode, sparse),
            *(per_sample_weights, include_last_offset, padding_idx),
        )
        if mode == _MAX or not out.numel() or not indices.numel() or weight.dtype not in MEMORY:
            return out, *others
        bag = _bags(offsets, indices.numel(), len(out))
        rows = _wide(weight.index_select(0, indices))
        if per_sample_weights is not None:
            rows = rows * _wide(per_sample_weights).unsqueeze(1)
        if padding_idx >= 0:
            rows = rows.masked_fill((indices == padding_idx).unsqueeze(1), 0)
        made = rows.new_zeros((len(out), rows.shape[1])).index_add_(0, bag, rows)
        if mode == _MEAN:
            made = made / others[1].clamp(min=1).to(made.dtype).unsqueeze(1)
        return made.to(weight.dtype), *others

    return embedding_bag


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def _bags(offsets: Tensor, count: int, bags: int) -> Tensor:
    """Returns the bag of each index."""
    starts = offsets[:bags].to(torch.int64)
    ends = torch.cat([offsets[1 : bags + 1].to(torch.int64), starts.new_tensor([count])])[:bags]
    return torch.repeat_interleave(torch.arange(bags), ends - starts, output_size=count)


def _dense_gradient(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor | None:
    if not takes("_embedding_bag_dense_backward", grad.dtype) or mode == _MAX or not indices.numel():
        return None
    rows = _wide(grad).index_select(0, offset2bag)
    if mode == _MEAN:
        rows = rows / bag_size.clamp(min=1).index_select(0, offset2bag).to(rows.dtype).unsqueeze(1)
    if per_sample_weights is not None:
        rows = rows * _wide(per_sample_weights).unsqueeze(1)
    if scale_grad_by_freq:
        counts = torch.bincount(indices, minlength=num_weights)
        rows = rows / counts.index_select(0, indices).to(rows.dtype).unsqueeze(1)
    if padding_idx >= 0:
        rows = rows.masked_fill((indices == padding_idx).unsqueeze(1), 0)
    return rows.new_zeros((num_weights, rows.shape[1])).index_add_(0, indices, rows).to(grad.dtype)


def _weights_gradient(
    grad: Tensor,
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    offset2bag: Tensor,
    mode: int,
    padding_idx: int = -1,
) -> Tensor | None:
    if not takes("_embedding_bag_per_sample_weights_backward", grad.dtype) or mode or not indices.numel():
        return None
    bag = offset2bag if offset2bag.numel() else _bags(offsets, indices.numel(), len(grad))
    products = _wide(grad).index_select(0, bag) * _wide(weight.index_select(0, indices))
    made = products.sum(1)
    return (made.masked_fill(indices == padding_idx, 0) if padding_idx >= 0 else made).to(grad.dtype)


_REASON = (
    "the vendor's axpy and dot, or generated code with an fma: products and index_add, in the order of "
    "indices"
)

REPLACEMENTS = (
    *replacements(["_embedding_bag", "_embedding_bag_forward_only"], _forward, _REASON),
    *replacements(["_embedding_bag_dense_backward"], or_torchs(_dense_gradient), _REASON),
    *replacements(["_embedding_bag_per_sample_weights_backward"], or_torchs(_weights_gradient), _REASON),
)
