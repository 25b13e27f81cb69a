"""The norm of all gradients, added in an order that does not follow how their rows lie on the ranks.

A row (an index of the first dimension) always lies on one rank. So each rank adds up its rows, and all of
them add the sums of all rows. Every sum is one of halves, by elementwise additions in float64: a library's
sum has another order for another number of rows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from samebits._dtensors import borders, local
from samebits.errors import InvalidArgumentError, UnimplementedError

_BLOCK = 1 << 18
"""Elements that are in float64 at a time: those of a processor's cache."""


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """Scales gradients in place so that the norm of all of them together is at most `max_norm`.

    As `torch.nn.utils.clip_grad_norm_`, and the bits are equal for replicated parameters and for those of
    `fully_shard` on any number of ranks, all of which must call it. It adds in float64, so they are not those
    of torch.

    Args:
        parameters: their gradients are scaled; those without one are left out.
        max_norm: the largest norm.
        norm_type: 2, 1 or inf.
        error_if_nonfinite: raises for a norm that is infinite or NaN.
        foreach: accepted and ignored.

    Returns:
        The norm before: a tensor without dimensions, float32 (float64 if a gradient is).

    Raises:
        UnimplementedError: another `norm_type`, sparse gradients, DTensors that are not sharded by rows over
            one dimension of a mesh.
        InvalidArgumentError: `error_if_nonfinite`, and the norm is not finite.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> samebits.nn.utils.clip_grad_norm_([weight], max_norm=1.0)
        tensor(5.)
        >>> weight.grad
        tensor([0.6000, 0.8000])
    """
    call = "samebits.nn.utils.clip_grad_norm_"
    power = float(norm_type)
    if power not in (1.0, 2.0, float("inf")):
        raise UnimplementedError(f"{call}(norm_type={norm_type}): it is 2, 1 or inf.")
    given = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    gradients = [parameter.grad for parameter in given if parameter.grad is not None]
    if not gradients:
        return torch.tensor(0.0)
    for gradient in gradients:
        if gradient.layout is not torch.strided or not _by_rows(gradient):
            raise UnimplementedError(
                f"{call}: a gradient of shape {tuple(gradient.shape)} is sparse, or a DTensor that is not "
                "sharded by rows over one dimension. Pass parameters of fully_shard, or plain ones."
            )
    device = gradients[0].device
    rows = [_row_sums(local(gradient), power).to(device) for gradient in gradients]
    whole = _of_all_ranks(gradients, rows)
    total = _halved(torch.stack([_halved(one, power) for one in whole]), power)
    norm = total.sqrt() if power == 2.0 else total
    if error_if_nonfinite and not bool(norm.isfinite()):
        raise InvalidArgumentError(f"{call}(error_if_nonfinite=True): the norm is {float(norm)}.")
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        local(gradient).mul_(factor.to(gradient.device))
    return norm.to(torch.float64 if torch.float64 in {one.dtype for one in gradients} else torch.float32)


def _by_rows(gradient: Any) -> bool:
    """Returns True for a plain tensor, and for a DTensor of which each rank has some rows, or all."""
    placements = getattr(gradient, "placements", ())
    whole = all(one.is_replicate() for one in placements)
    return whole or (len(placements) == 1 and placements[0].is_shard(0))


def _row_sums(tensor: torch.Tensor, power: float) -> torch.Tensor:
    """Returns the sum of the powers of each row (inf: the largest), in float64."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    flat = tensor.reshape(1, 1) if tensor.ndim == 0 else tensor.reshape(len(tensor), tensor[:1].numel())
    found = flat.new_zeros(len(flat), dtype=torch.float64)
    step = max((_BLOCK if flat.device.type == "cpu" else 64 * _BLOCK) // max(flat.shape[1], 1), 1)
    for first in range(0, len(flat), step):
        block = flat[first : first + step].to(torch.float64, copy=True)
        block = block.square_() if power == 2.0 else block.abs_()
        found[first : first + step] = _halved(block, power)
    return found


def _halved(values: torch.Tensor, power: float) -> torch.Tensor:
    """Returns the sum over the last dimension (inf: the largest): halves are added, in place."""
    left = values.shape[-1]
    while left > 1:
        half = (left + 1) // 2
        first, second = values[..., : left - half], values[..., half:left]
        if power == float("inf"):
            torch.maximum(first, second, out=first)
        else:
            first.add_(second)
        left = half
    return values[..., 0] if left else values.new_zeros(values.shape[:-1])


def _of_all_ranks(gradients: Sequence[Any], rows: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the sums of all rows of each gradient; of DTensors they come from the ranks, in one message."""
    whole = list(rows)
    placements = [getattr(one, "placements", ()) for one in gradients]
    sharded = [n for n, one in enumerate(placements) if any(each.is_shard() for each in one)]
    if not sharded:
        return whole
    mesh = gradients[sharded[0]].device_mesh
    ranks = mesh.size()
    bounds = [borders(len(gradients[n]), ranks) for n in sharded]
    counts = [[after - begin for begin, after in itertools.pairwise(one)] for one in bounds]
    own = torch.cat([rows[n] for n in sharded])
    of_rank = list(zip(*counts, strict=True))
    padded = own.new_zeros(max(sum(sizes) for sizes in of_rank))
    padded[: len(own)] = own
    found = [torch.empty_like(padded) for _ in range(ranks)]
    dist.all_gather(found, padded, mesh.get_group())
    parts = [one.split([*sizes, len(one) - sum(sizes)]) for one, sizes in zip(found, of_rank, strict=True)]
    for place, n in enumerate(sharded):
        whole[n] = torch.cat([part[place] for part in parts])
    return whole
