"""`nll_loss2d` (torch sums its blocks with atomics); backwards of `ctc_loss` and `multilabel_margin_loss`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from samebits.determinism._cuda_decompositions.forms import accumulation_dtype

_NONE, _MEAN = 0, 1  # at::Reduction


def nll_loss2d_is_refused(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int, **out: Tensor
) -> bool:
    """Returns True with a reduction; without one nothing is summed, so torch's kernel is used."""
    return reduction != _NONE


def nll_loss2d_forward(
    self: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """`aten::nll_loss2d_forward` with a mean or sum: the loss and the total weight, both scalars.

    `self`: (N, C, H, W) log-probabilities, `target`: (N, H, W) int64. Sums are torch's reductions (trees).

    Raises:
        RuntimeError: a target outside the classes (a device-side assert on CUDA).
    """
    dtype = accumulation_dtype(self.dtype)
    counted = target != ignore_index
    classes = torch.where(counted, target, 0)
    picked = self.gather(1, classes.unsqueeze(1)).squeeze(1).to(dtype)
    weights = torch.ones_like(picked) if weight is None else weight.to(dtype)[classes]
    weights = torch.where(counted, weights, 0)
    total = weights.sum()
    # An ignored place counts for nothing, even where its log-probability is infinite.
    loss = -torch.where(counted, picked * weights, 0).sum()
    if reduction == _MEAN:
        loss = loss / total
    return loss.to(self.dtype), total.to(self.dtype)


def ctc_loss_backward(
    grad: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """`aten::_ctc_loss_backward`: (N,) and (T, N, C) to (T, N, C), zero after each input's length.

    Graves et al. 2006, eq. 16: exp(log_probs) minus the posterior of each label. The backward variable beta
    is the forward variable of the reversed problem, so torch's own `_ctc_loss` computes it; posteriors of one
    label are added by `index_add_` over (sample, label) rows, which sorts on CUDA under the switch.
    """
    device, (times, samples, classes) = log_probs.device, log_probs.shape
    lengths = torch.tensor(input_lengths, device=device)
    sizes = torch.tensor(target_lengths, device=device)
    labels = _padded(targets.to(device, torch.int64), target_lengths, (log_alpha.shape[-1] - 1) // 2)
    extended = labels.new_full((samples, log_alpha.shape[-1]), blank)
    real = torch.arange(labels.shape[1], device=device) < sizes[:, None]
    extended[:, 1::2] = torch.where(real, labels, blank)

    time, place = torch.arange(times, device=device), torch.arange(extended.shape[1], device=device)
    back = (lengths[:, None] - 1 - time).clamp_(min=0)  # (N, T)
    log_beta = _beta(log_probs, labels, back, sizes, (input_lengths, target_lengths, blank))
    mirror = (2 * sizes[:, None] - place).clamp_(min=0)  # (N, S)
    sample = torch.arange(samples, device=device)[:, None, None]
    joint = log_alpha + log_beta[sample, back[:, :, None], mirror[:, None, :]]  # (N, T, S)
    shown = log_probs.transpose(0, 1).gather(2, extended[:, None, :].expand(-1, times, -1))
    posterior = torch.exp(joint + neg_log_likelihood[:, None, None] - shown)
    inside = (time < lengths[:, None])[:, :, None] & (place <= 2 * sizes[:, None])[:, None, :]
    posterior = torch.where(inside & (joint != -torch.inf), posterior, 0)

    rows = (sample[:, :, 0] * classes + extended[:, 1::2]).view(-1)
    sums = posterior.new_zeros((samples * classes, times))
    sums.index_add_(0, rows, posterior[:, :, 1::2].transpose(1, 2).reshape(len(rows), times))
    result = log_probs.exp() - sums.view(samples, classes, times).permute(2, 0, 1)
    result[:, :, blank] -= posterior[:, :, 0::2].sum(2).t()
    result *= grad[:, None]
    impossible = neg_log_likelihood == torch.inf
    result.masked_fill_(impossible[:, None], 0 if zero_infinity else torch.nan)
    return result.masked_fill_((time[:, None] >= lengths)[:, :, None], 0)


def multilabel_margin_loss_backward(
    grad_output: Tensor, self: Tensor, target: Tensor, reduction: int, is_target: Tensor
) -> Tensor:
    """`aten::multilabel_margin_loss_backward`: the gradient of `self`, (N, C) or (C).

    A pair of a target t and a class c that is no target counts where 1 - x[t] + x[c] > 0; counts are exact.
    torch's kernel adds and scales a target's gradient in two threads that do not wait for one another.
    """
    x = self.reshape(-1, self.shape[-1] if self.dim() else 1)
    targets, no_target = target.reshape(x.shape), is_target.reshape(x.shape) == 0
    listed = (targets >= 0).long().cummin(1).values.bool()  # up to the first negative one
    margin = 1 - x.gather(1, torch.where(listed, targets, 0))
    counts = listed & ~margin.isnan()
    ordered = torch.where(counts, margin, -torch.inf).sort(1).values
    of_class = x.shape[1] - torch.searchsorted(ordered, (-x).contiguous(), right=True)
    ordered = torch.where(no_target, -x, torch.inf).sort(1).values
    of_target = torch.where(counts, torch.searchsorted(ordered, margin), 0)
    pairs = torch.where(no_target, of_class, 0)
    pairs = pairs.scatter_add(1, torch.where(listed, targets, 0), -of_target)
    scale = 1 / (x.numel() if reduction == _MEAN else x.shape[1])
    gradient = (pairs.to(accumulation_dtype(x.dtype)) * scale).to(x.dtype)
    return (gradient * grad_output.reshape(-1, 1)).view(self.shape)


def _padded(targets: Tensor, target_lengths: Sequence[int], longest: int) -> Tensor:
    """Returns (N, longest) labels from torch's two layouts: (N, S), or all targets in one row."""
    if targets.dim() == 2:
        return targets[:, :longest]
    if targets.numel() == 0:
        return targets.new_zeros((len(target_lengths), longest))
    starts = torch.tensor([0, *accumulate(target_lengths)][:-1], device=targets.device)
    places = starts[:, None] + torch.arange(longest, device=targets.device)
    return targets[places.clamp_(max=targets.numel() - 1)]


def _beta(log_probs: Tensor, labels: Tensor, back: Tensor, sizes: Tensor, rest: tuple) -> Tensor:
    """Returns the log forward variables (N, T, S) with time and labels reversed within each sample."""
    times, reversed_place = back.t(), sizes[:, None] - 1 - torch.arange(labels.shape[1], device=labels.device)
    flipped = log_probs.gather(0, times[:, :, None].expand_as(log_probs))
    return torch.ops.aten._ctc_loss(flipped, labels.gather(1, reversed_place.clamp_(min=0)), *rest)[1]
