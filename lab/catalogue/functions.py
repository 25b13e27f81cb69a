"""Functions that lines of battery.txt call, since they take more than one statement."""

from __future__ import annotations

import torch

_LSTSQ_CALLS = 60
"""gelsy reads a pivot array that nobody wrote: it takes some calls to meet other bytes there."""


def assign_at_indices(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    """Adds at pairs of indices, then writes rows."""
    y = x.clone()
    y[i, i % 64] += 1.0
    y[i] = s
    return y


def repeated_lstsq(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    """Solutions by the default driver, each after other bytes were left in freed memory."""
    found = []
    for number in range(_LSTSQ_CALLS):
        for size in (2, 4, 8, 16, 32, 64, 128):
            torch.full((size,), 7.0 * number + size)
        found.append(torch.linalg.lstsq(a, b).solution)
    return found


def foreach(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    """Functions of lists of tensors; one tensor lies at an odd offset."""
    ins = [a, b, a[1:]]
    return [
        *torch._foreach_add(ins, 1.5),
        *torch._foreach_mul(ins, ins),
        *torch._foreach_sqrt(torch._foreach_abs(ins)),
        *torch._foreach_addcmul(ins, ins, torch._foreach_neg(ins), 0.7),
        *torch._foreach_addcdiv(ins, ins, torch._foreach_exp(ins), 0.1),
        *torch._foreach_lerp(ins, torch._foreach_neg(ins), 0.3),
        *torch._foreach_norm(ins),
        *torch._foreach_norm(ins, 1),
        *torch._foreach_pow(torch._foreach_abs(ins), 1.7),
    ]
