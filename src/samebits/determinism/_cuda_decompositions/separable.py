"""The adjoint of a map that works along each dimension separately: resizing, averaging over windows.

Forward, output o along one dimension is a sum of weight * input i over a few pairs (o, i). Torch's CUDA
kernels scatter the gradient over these pairs with atomics. Here each input *gathers* from its outputs: a
table of K outputs and weights per input, then one indexing, one product and one sum per dimension. Tables are
made once per shape, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.determinism._cuda_decompositions.forms import accumulation_dtype


@dataclass(frozen=True)
class Pairs:
    """The nonzeros of the forward map along one dimension: three arrays of one length, in any order."""

    outputs: np.ndarray
    inputs: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True)
class AdjointTable:
    """The outputs of each input, and their weights."""

    outputs: Tensor
    """(K, inputs) int64; unused entries repeat the first output, with weight 0."""
    weights: Tensor
    """(K, inputs)."""
    unused: Tensor | None
    """The inputs without an output, if any: exactly 0, even where a gradient is not finite."""


Describe = tuple[Callable[..., Pairs], tuple[Any, ...], int]
"""The definition of a table: a function of pairs, its arguments (hashable), and the number of inputs."""


def adjoint(grad_output: Tensor, first: int, maps: Sequence[Describe | None]) -> Tensor:
    """Returns the gradient of the input; `maps` are for dimensions from `first` on (None: identity).

    Dimensions are done from the last to the first. Sums are made in float32 for float16 and bfloat16. The
    memory format of `grad_output` is kept where channels come last.
    """
    dtype = accumulation_dtype(grad_output.dtype)
    channels_last = first == 2 and _channels_last(grad_output)
    grad = (grad_output.movedim(1, -1) if channels_last else grad_output).to(dtype)
    first -= channels_last
    for dim in reversed(range(first, first + len(maps))):
        one = maps[dim - first]
        if one is not None:
            grad = _gather(grad, dim, _table(*one, grad.device, dtype))
    grad = grad.to(grad_output.dtype)
    return grad.movedim(-1, 1) if channels_last else grad


def _channels_last(x: Tensor) -> bool:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return layout is not None and not x.is_contiguous() and x.is_contiguous(memory_format=layout)


def _gather(grad: Tensor, dim: int, table: AdjointTable) -> Tensor:
    weights = table.weights.view(*table.weights.shape, *[1] * (grad.dim() - dim - 1))
    taken = grad[(slice(None),) * dim + (table.outputs,)]
    result = taken.mul_(weights).sum(dim) if len(weights) > 1 else taken.mul_(weights).squeeze(dim)
    return result if table.unused is None else result.index_fill_(dim, table.unused, 0)


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # kept for later calls, which may be outside of it
def _table(
    function: Callable[..., Pairs], args: tuple[Any, ...], size: int, device: torch.device, dtype: torch.dtype
) -> AdjointTable:
    outputs, weights, counts = _rows(function(*args), size)
    unused = np.flatnonzero(counts == 0)
    return AdjointTable(
        torch.from_numpy(outputs).to(device),
        torch.from_numpy(weights).to(device, dtype),
        torch.from_numpy(unused).to(device) if unused.size else None,
    )


def _rows(pairs: Pairs, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (K, size) outputs and weights, equal pairs added, and the number of outputs per input."""
    span = int(pairs.outputs.max(initial=0)) + 1
    keys, place = np.unique(pairs.inputs * span + pairs.outputs, return_inverse=True)
    sums = np.bincount(place, weights=pairs.weights, minlength=len(keys))
    inputs = keys // span
    counts = np.bincount(inputs, minlength=size)
    starts = np.cumsum(counts) - counts
    rank = np.arange(len(keys)) - starts[inputs]
    outputs = np.zeros((max(1, counts.max(initial=0)), size), dtype=np.int64)
    outputs[:, counts > 0] = (keys % span)[starts[counts > 0]]
    weights = np.zeros(outputs.shape)
    outputs[rank, inputs], weights[rank, inputs] = keys % span, sums
    return outputs, weights, counts
