"""Backward of `embedding_bag(mode="max")`."""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.determinism._cuda_decompositions.forms import accumulation_dtype

_MAX = 2  # at::native::EmbeddingBagMode


def embedding_bag_is_refused(
    grad: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    *rest: object,
) -> bool:
    """Returns True for max; sums and means have a deterministic kernel."""
    return mode == _MAX


def embedding_bag_dense_backward(
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
) -> Tensor:
    """`aten::_embedding_bag_dense_backward` for max: (bags, F) to (num_weights, F).

    `maximum_indices` (bags, F) names the row each maximum came from, -1 for a bag without any (its gradient goes
    nowhere). `scatter_add_` sorts on CUDA under the switch.
    """
    dtype, features = accumulation_dtype(grad.dtype), grad.shape[1]
    result = grad.new_zeros((num_weights, features), dtype=dtype)
    filled = maximum_indices >= 0
    if grad.is_cpu:  # torch's CPU forward has 0 for an empty bag
        filled &= bag_size[: len(grad), None] > 0
    rows = torch.where(filled, maximum_indices, 0).to(torch.int64)
    return result.scatter_add_(0, rows, torch.where(filled, grad.to(dtype), 0)).to(grad.dtype)
