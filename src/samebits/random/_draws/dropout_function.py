"""`dropout` whose mask is a function of a key: drawn again in backward, never stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch._C import _are_functorch_transforms_active
from torch.autograd import forward_ad

from samebits.errors import InvalidArgumentError
from samebits.random._device_kernels import kernels
from samebits.random._draws.uniform_normal import bernoulli
from samebits.random._keys import check_key, is_traced
from samebits.random._memory import fresh
from samebits.random._random_arguments import FLOATS, check_probability, row_keys, write


def dropout(
    key: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 (torch's name)
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    """Zeroes elements of `input` with probability p, scales the others by 1 / (1 - p): `F.dropout`.

    Zero where `bernoulli(key, input.shape, p=p)` is one, for every dtype, layout and number of threads.
    Differentiable, in forward mode and twice too.

    Args:
        key: of shape (2,), or a batch that broadcasts to the shape of `input` as in `uniform`.
        input: float32, float64, float16 or bfloat16.
        p: probability of an element to be zeroed.
        training: False gives `input` itself.
        inplace: writes to `input`.

    Raises `InvalidArgumentError` for a wrong key, another dtype or device, p outside [0, 1], a key batch that
    does not fit the shape, or a leaf that requires grad in place.

    Example:
        >>> key = samebits.random.key(7)
        >>> samebits.random.dropout(key, torch.ones(8), p=0.5)
        tensor([2., 2., 0., 0., 0., 2., 0., 2.])
        >>> samebits.random.dropout(key, torch.ones(8), p=0.5, training=False)
        tensor([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    check_key("dropout", key)
    probability = check_probability("dropout", p)
    if not isinstance(input, torch.Tensor) or input.dtype not in FLOATS:
        kind = input.dtype if isinstance(input, torch.Tensor) else type(input).__name__
        raise InvalidArgumentError(f"dropout: input must be a floating tensor, got {kind}")
    if not training or probability == 0:
        return input
    if input.device != key.device:
        raise InvalidArgumentError(
            f"dropout: key and input must be on one device, got a key on {key.device} and an input on "
            f"{input.device}; move the key: key.to({str(input.device)!r})"
        )
    if inplace and input.requires_grad and input.is_leaf and torch.is_grad_enabled():
        raise InvalidArgumentError(
            "dropout: input is a leaf that requires grad, which cannot be written in place; use inplace=False"
        )
    if probability == 1:
        return input.mul_(0.0) if inplace else input * 0.0
    if is_traced(key):
        out = torch.ops.samebits.dropout(key, input, probability)
        return input.copy_(out) if inplace else out
    return _apply(input, key, probability, run, inplace)


def differentiable(key: torch.Tensor, source: torch.Tensor, p: float) -> torch.Tensor:
    """Returns the op for autograd. In forward mode and for torch.func the mask is a factor: the same bits."""
    if _forward_mode() or _are_functorch_transforms_active():
        dropped = bernoulli(key, source.shape, p=p, dtype=torch.bool)
        return source * dropped.logical_not().to(source.dtype).div_(1 - p)
    return _apply(source, key, p, _below_autograd if is_traced(key) else run)


def _forward_mode() -> bool:
    return forward_ad._current_level >= 0


def _apply(
    source: torch.Tensor,
    key: torch.Tensor,
    p: float,
    compute: Callable[..., torch.Tensor],
    inplace: bool = False,
) -> torch.Tensor:
    """Calls `compute`, by way of autograd if a gradient or a tangent may be needed."""
    if (source.requires_grad and torch.is_grad_enabled()) or _forward_mode():
        return _DropoutFunction.apply(source, key, p, compute, inplace)
    return compute(source, key, p, inplace)


def _below_autograd(source: torch.Tensor, key: torch.Tensor, p: float, inplace: bool) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.samebits.dropout(key, source, p)


def run(source: torch.Tensor, key: torch.Tensor, p: float, inplace: bool = False) -> torch.Tensor:
    """Returns `dropout` of 0 < p < 1, once the arguments are checked; autograd does not see it."""
    keys = row_keys("dropout", key, source.shape)
    if not source.numel():
        return source if inplace else torch.empty_like(source)
    fill, scale, contiguous = kernels("dropout", key).dropout, _scale(p, source.dtype), source.contiguous()
    if inplace:
        return write(source, fill, keys, contiguous, p, scale)
    out = fresh(contiguous.shape, contiguous.dtype, contiguous.device)
    fill(keys, contiguous, p, scale, out)
    return out if contiguous is source else torch.empty_like(source).copy_(out)


class _DropoutFunction(torch.autograd.Function):
    """An op linear in its input: gradient and tangent are dropped as the input was."""

    @staticmethod
    def forward(
        ctx: Any,
        source: torch.Tensor,
        key: torch.Tensor,
        p: float,
        compute: Callable[..., torch.Tensor],
        inplace: bool,
    ) -> torch.Tensor:
        ctx.p = p
        ctx.save_for_backward(key)
        ctx.save_for_forward(key)
        out = compute(source, key, p, inplace)
        if inplace:
            ctx.mark_dirty(out)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> tuple[torch.Tensor | None, ...]:
        (key,), (grad,) = ctx.saved_tensors, grad_outputs
        return _backward(grad, key, ctx.p), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> torch.Tensor:
        (key,), (tangent, *_) = ctx.saved_tensors, grad_inputs
        return _backward(tangent, key, ctx.p)


def _backward(grad: torch.Tensor, key: torch.Tensor, p: float) -> torch.Tensor:
    """Drops a gradient: forward may have been traced and backward not, or the other way round."""
    return torch.ops.samebits.dropout(key, grad, p) if is_traced(key) else _apply(grad, key, p, run)


@lru_cache(maxsize=64)
def _scale(p: float, dtype: torch.dtype) -> float:
    """Returns 1 / (1 - p), rounded as `F.dropout` rounds it on the CPU."""
    return torch.ones((), dtype=dtype, device="cpu").div_(1 - p).item()
