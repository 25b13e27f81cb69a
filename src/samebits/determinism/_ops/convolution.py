"""Convolutions, transposed ones, and their gradients, by `arithmetic.convolution.definition`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits.arithmetic.convolution import (
    ConvolutionSteps,
    Three,
    channels_first,
    channels_last,
    gathered,
    paired,
    spread,
    weight_gradient,
)
from samebits.determinism._replacement import NotCoveredError, always, replacements

_COMPOSITE = torch._C.DispatchKey.CompositeExplicitAutograd
# Torch registers its kernels of these ops for all devices at once; a kernel for the CPU goes before them.
_torchs = partial(torch.ops.aten._convolution.default._op_dk, _COMPOSITE)
_torchs_backward = partial(torch.ops.aten.convolution_backward.default._op_dk, _COMPOSITE)

_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


class ConvolutionCase(NamedTuple):
    """A convolution that is computed here."""

    steps: ConvolutionSteps
    is_transposed: bool
    outputs: Three


def _three(values: Sequence[int], rank: int, filler: int) -> Three:
    given = tuple(values) * rank if len(values) == 1 else tuple(values)
    z, y, x = (filler,) * (3 - len(given)) + given
    return z, y, x


@lru_cache(maxsize=2048)
def _case(sizes: Any, weight: Any, rest: Any) -> ConvolutionCase | None:
    """Returns the case of a call; None where torch's kernel raises, or nothing is multiplied."""
    stride, padding, dilation, transposed, extra, groups = rest
    rank = len(sizes) - 2
    if len(weight) != len(sizes) or not 1 <= rank <= 3 or 0 in sizes or 0 in weight:
        return None
    if any(len(values) not in (1, rank) for values in (stride, padding, dilation, extra)):
        return None
    if (
        groups < 1
        or weight[0] % groups
        or min(stride) < 1
        or min(dilation) < 1
        or min((*padding, *extra)) < 0
    ):
        return None
    if sizes[1] != (weight[0] if transposed else weight[1] * groups):
        return None
    steps = ConvolutionSteps(
        _three(stride, rank, 1), _three(padding, rank, 0), _three(dilation, rank, 1), groups
    )
    added, source, kernel = _three(extra, rank, 0), _three(sizes[2:], rank, 1), _three(weight[2:], rank, 1)
    outputs = []
    for n, k, s, p, d, e in zip(source, kernel, *steps[:3], added, strict=True):
        tap = d * (k - 1) + 1
        if transposed and e >= max(s, d):
            return None
        outputs.append((n - 1) * s - 2 * p + tap + e if transposed else (n + 2 * p - tap) // s + 1)
    if min(outputs) < 1:
        return None
    return ConvolutionCase(steps, transposed, (outputs[0], outputs[1], outputs[2]))


def _of(x: Tensor, weight: Tensor, rest: Sequence[Any]) -> ConvolutionCase | None:
    """Returns the case of a call's tensors and parameters; see `_case`."""
    if x.dtype != weight.dtype or x.dtype not in _TYPES:
        if x.is_complex() or weight.is_complex():
            raise NotCoveredError(
                "aten::convolution", f"of {str(x.dtype)[6:]}", "Convolve the real and imaginary parts"
            )
        return None
    stride, padding, dilation, transposed, extra, groups = rest[:6]
    key = (tuple(stride), tuple(padding), tuple(dilation), transposed, tuple(extra), groups)
    return _case(x.shape, weight.shape, key)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    case = _of(x, weight, rest)
    if case is None or not _is_bias(bias, x, weight, case):
        return _torchs(x, weight, bias, *rest)
    last = _gives_last(x, weight)
    compute = spread if case.is_transposed else gathered
    wide_bias = None if bias is None else _wide(bias).contiguous()
    factors = _factors(x, weight, case.steps.groups, is_spread=case.is_transposed, last=last)
    return _as_torchs(compute(*factors, wide_bias, case.outputs, case.steps, last=last), x, last)


def _is_bias(bias: Tensor | None, x: Tensor, weight: Tensor, case: ConvolutionCase) -> bool:
    outputs = weight.shape[1] * case.steps.groups if case.is_transposed else weight.shape[0]
    return bias is None or (bias.dtype == x.dtype and bias.shape == (outputs,))


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Sequence[int] | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    rest, mask = rest[:-1], rest[-1]
    case = _of(x, weight, rest)
    if case is None or grad.dtype != x.dtype or tuple(grad.shape[2:]) != case.outputs[5 - grad.dim() :]:
        return tuple(_torchs_backward(grad, x, weight, bias, *rest, mask))
    last = _gives_last(x, weight)
    found: list[Tensor | None] = [None, None, None]
    if mask[0]:
        sizes = _three(x.shape[2:], x.dim() - 2, 1)
        compute = gathered if case.is_transposed else spread
        factors = _factors(grad, weight, case.steps.groups, is_spread=not case.is_transposed, last=last)
        found[0] = _as_torchs(compute(*factors, None, sizes, case.steps, last=last), x, last)
    if mask[1]:
        image, errors = _images(
            (grad, x) if case.is_transposed else (x, grad), weight, case.steps.groups, last
        )
        kernel = _three(weight.shape[2:], weight.dim() - 2, 1)
        value = weight_gradient(image, errors, kernel, case.steps, last=last)
        value = value.view(weight.shape)
        if last and value.dim() in _FORMATS:
            value = channels_last(value, _FORMATS[value.dim()])
        found[1] = value if value.dtype == x.dtype else value.to(x.dtype)
    if mask[2]:
        found[2] = grad.sum((0, *range(2, grad.dim())))
    return tuple(found)


def _gives_last(x: Tensor, weight: Tensor) -> bool:
    """Returns True if the results are in channels last."""
    # torch's kernel for three dimensions and float64 knows none
    is_known = x.dim() in _FORMATS and (x.dim(), x.dtype) != (5, torch.float64)
    return is_known and (_is_channels_last(x) or _is_channels_last(weight))


def _wide(x: Tensor) -> Tensor:
    """The tensor, as float32 if it is of a short type."""
    return x.float() if x.element_size() == 2 else x


def _factors(x: Tensor, weight: Tensor, groups: int, *, is_spread: bool, last: bool) -> tuple[Tensor, Tensor]:
    """The input or gradient and the weight as `gathered` or `spread` takes them, in three dimensions."""
    dim, parts = (0, groups) if is_spread else (1, 1)
    if x.dtype != torch.bfloat16 or weight.shape[dim] == parts:
        return _image(_wide(x), last), _with_three(_wide(weight).contiguous())
    image, kernel = _image(x, last).contiguous(), _with_three(weight.contiguous())
    return paired(image, 4 if last else 1, groups), paired(kernel, dim, parts)


def _images(two: tuple[Tensor, Tensor], weight: Tensor, groups: int, last: bool) -> list[Tensor]:
    """The input and the gradient of the output as `weight_gradient` takes them."""
    is_depthwise = weight.shape[0] == groups and weight.shape[1] == 1
    if two[0].dtype != torch.bfloat16 or len(two[0]) == 1 or is_depthwise:
        return [_image(_wide(one), last) for one in two]
    return [paired(_image(one, last).contiguous(), 0, 1) for one in two]


def _image(x: Tensor, last: bool) -> Tensor:
    """The input or gradient with three space dimensions; channels first, or last and contiguous."""
    rank, is_short = x.dim(), x.element_size() == 2
    is_last = rank in _FORMATS and not x.is_contiguous() and x.is_contiguous(memory_format=_FORMATS[rank])
    if not last:
        return _with_three(channels_first(x) if is_last and not is_short else x)
    if not is_last and is_short:
        x = x.contiguous(memory_format=_FORMATS[rank])
    elif not is_last:
        x = channels_last(x.contiguous(), _FORMATS[rank])
    moved = x.movedim(1, -1)
    return moved if rank == 5 else moved.unsqueeze(1)


def _with_three(x: Tensor) -> Tensor:
    while x.dim() < 5:
        x = x.unsqueeze(2)
    return x


def _as_torchs(found: Tensor, x: Tensor, last: bool) -> Tensor:
    """A result in the rank, type and memory format of torch's."""
    rank = x.dim()
    if last:
        found = (found if rank == 5 else found.squeeze(1)).movedim(-1, 1)
    elif rank < 5:
        found = found.view(*found.shape[:2], *found.shape[7 - rank :])
    return found if found.dtype == x.dtype else found.to(x.dtype)


def _is_channels_last(x: Tensor) -> bool:
    """Returns True if torch suggests channels last for results of `x` (its `is_channels_last_strides_2d`)."""
    if x.is_contiguous():
        return False
    sizes, strides, least = x.shape, x.stride(), 0
    if strides[1] == 0:
        return False
    for dim in (1, *range(x.dim() - 1, 1, -1), 0):
        if strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(1, sizes[dim])
    return True


_REASON = (
    "oneDNN blocks by the CPU and the number of threads: chains of fused multiply-adds in the order of the "
    "definition"
)

REPLACEMENTS = (
    *replacements(("_convolution",), always(_convolution), _REASON),
    *replacements(("convolution_backward",), always(_convolution_backward), _REASON),
)
