"""Operands of the kernels: values that every tree computes alike, in the layouts that kernels take apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.bfloat16)
Make = Callable[..., Tensor]


@lru_cache(maxsize=64)
def values(count: int, seed: int) -> Tensor:
    """Uniform float64 numbers of [0, 1), of a generator whose numbers are integer arithmetic."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2**52, (count,), generator=generator, dtype=torch.int64).double() / 2**52


def tensor(
    *shape: int, dtype: torch.dtype = torch.float32, low: float = -1.0, high: float = 1.0, seed: int = 0
) -> Tensor:
    """Numbers of [low, high); of a complex dtype, both parts."""
    count = torch.Size(shape).numel()
    if dtype.is_complex:
        return torch.complex(
            *(tensor(*shape, low=low, high=high, seed=seed + part).double() for part in (0, 7))
        ).to(dtype)
    return (values(count, seed + 31 * count) * (high - low) + low).to(dtype).view(shape)


def integers(*shape: int, high: int, seed: int = 0) -> Tensor:
    """Integers of [0, high)."""
    return tensor(*shape, low=0, high=high, seed=seed, dtype=torch.float64).long()


def layouts(make: Callable[[tuple[int, ...]], Tensor]) -> dict[str, Tensor]:
    """One and the same kind of values in one row, transposed, sliced, strided and expanded memory."""
    return {
        "row": make((103_057,)),
        "small": make((3, 7)),
        "matrix": make((331, 311)),
        "turned": make((331, 311)).t(),
        "sliced": make((331, 313))[:, 1:-1],
        "strided": make((206_117,))[3::2],
        "expanded": make((331, 1)).expand(331, 311),
        "deep": make((7, 83, 3, 61)).permute(0, 2, 3, 1),
    }


def with_gradients(function: Callable[..., Any], *inputs: Any) -> list[Any]:
    """The results, and the gradients of a weighted sum of them to each floating input."""
    inputs = tuple(
        x.detach().requires_grad_() if isinstance(x, Tensor) and x.dtype.is_floating_point else x
        for x in inputs
    )
    asked = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    outs = function(*inputs)
    outs = [x for x in (outs if isinstance(outs, tuple | list) else [outs]) if isinstance(x, Tensor)]
    live = [x for x in outs if x.requires_grad and x.dtype.is_floating_point]
    weights = [tensor(*x.shape, dtype=x.dtype, seed=5) for x in live]
    return [outs, list(torch.autograd.grad(live, asked, weights, allow_unused=True)) if live else []]
