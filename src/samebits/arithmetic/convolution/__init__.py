"""Convolutions and their gradients. The definition of their bits is in `definition`.

There is code for both memory formats. Turned to channels first and back, a training step of a small ResNet
with channels last took 1.36 times as long (float32; bfloat16 1.50), and single convolutions up to 1.8 times.
Groups of few outputs alone are turned: depthwise convolutions took a sixth to a half of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from samebits.arithmetic.convolution.borders import bordered
from samebits.arithmetic.convolution.copies import turn
from samebits.arithmetic.convolution.definition import ConvolutionSteps, Three
from samebits.arithmetic.convolution.depthwise import correlated_depthwise
from samebits.arithmetic.convolution.geometry import (
    TapLine,
    Window,
    forward_window,
    spread_line,
    with_one_copy,
)
from samebits.arithmetic.convolution.interleaved import interleave
from samebits.arithmetic.convolution.interleaved import paired as paired
from samebits.arithmetic.convolution.positions import correlated
from samebits.arithmetic.convolution.windows import windowed
from samebits.arithmetic.convolution.windows_last import windowed_last
from samebits.arithmetic.product.vectors import BFLOAT16, FLOAT32, FLOAT64, Number


def gathered(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    outputs: Three,
    steps: ConvolutionSteps,
    *,
    last: bool = False,
) -> Tensor:
    """Returns the convolution (batch, outputs, z, y, x).

    `x`: (batch, channels, z, y, x); `weight`: (outputs, channels of a group, z, y, x); one type, float32 or
    float64, or `paired` channels of both, whose result is float32.
    `last`: channels are the last dimension of `x` and of the result, and `x` is contiguous.
    """
    if last and _are_few(weight.shape[0] // steps.groups, x):
        return _with_turns(gathered, x, weight, bias, outputs, steps)
    kernel = (weight.shape[2], weight.shape[3], weight.shape[4])
    window = _window(x, kernel, outputs, steps, last, x.is_contiguous())
    rows = weight.reshape(weight.shape[0], -1).contiguous()
    return (windowed_last if last else windowed)(x, rows, bias, window, steps.groups, _number(x))


def _are_few(outputs: int, x: Tensor) -> bool:
    """Returns True if the outputs of a group would leave half of a vector empty."""
    return 2 * outputs <= _number(x).lanes


def _with_turns(
    compute: Callable[..., Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sizes: Three,
    steps: ConvolutionSteps,
) -> Tensor:
    """Computes with channels first what is given, and returned, with channels last."""
    found = compute(channels_first(x.movedim(-1, 1)), weight, bias, sizes, steps)
    return channels_last(found, torch.channels_last_3d).movedim(1, -1)


def weight_gradient(
    x: Tensor, grad: Tensor, kernel: Three, steps: ConvolutionSteps, *, last: bool = False
) -> Tensor:
    """Returns the weight's gradient (outputs, channels of a group, z, y, x); `last`: of `x` and `grad`."""
    channels, planes = (x.shape[4], grad.shape[4]) if last else (x.shape[1], grad.shape[1])
    is_depthwise = steps.groups == channels == planes
    outputs = grad.shape[1:4] if last else grad.shape[2:]
    is_dense = is_depthwise or x.is_contiguous()
    window = _window(x, kernel, (outputs[0], outputs[1], outputs[2]), steps, last, is_dense)
    if is_depthwise:
        x, grad = (x.unsqueeze(1), grad.unsqueeze(1)) if last else (_blocks(x), _blocks(grad))
        found = correlated_depthwise(x, grad, window, _number(x))
    else:
        found = correlated(x, grad.contiguous(), window, steps.groups, _number(x), last=last)
    return found.view(*found.shape[:2], *kernel)


def spread(
    grad: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sizes: Three,
    steps: ConvolutionSteps,
    *,
    last: bool = False,
) -> Tensor:
    """Returns the gradient of an input of some sizes: a transposed convolution of the output's gradient.

    `grad`: (batch, outputs, z, y, x); `weight`: (outputs, channels of a group, z, y, x), or pairs of outputs
    of both. `last`: see `gathered`.
    """
    if last and _are_few(weight.shape[1], grad):
        return _with_turns(spread, grad, weight, bias, sizes, steps)
    groups, number = steps.groups, _number(grad)
    channels = weight.shape[1] * groups
    source = grad.shape[1:4] if last else grad.shape[2:]
    parts = [_parts(source[dim], weight.shape[2 + dim], sizes[dim], steps, dim) for dim in range(3)]
    grouped = weight.view(groups, -1, *weight.shape[1:])
    if steps.stride == (1, 1, 1):
        (line_z, z), (line_y, y), (line_x, x) = (part[0] for part in parts)
        window = Window((_there(line_z), _there(line_y), _there(line_x)), grad.is_contiguous())
        rows = grouped[:, :, :, z, y, x].transpose(1, 2).reshape(channels, -1).contiguous()
        return (windowed_last if last else windowed)(grad, rows, bias, window, groups, number)
    shared = [with_one_copy([line for line, _ in part]) for part in parts]
    whole_z, whole_y, whole_x = (_there(line) for _, line in shared)
    whole = Window((whole_z, whole_y, whole_x), grad.is_contiguous())
    source = bordered(grad, whole, number, last=last) if whole.is_copied else None
    found = []
    for residue in product(*(range(step) for step in steps.stride)):
        line_z, line_y, line_x = (lines[r] for (lines, _), r in zip(shared, residue, strict=True))
        if line_z is None or line_y is None or line_x is None:
            found.append(None)
            continue
        z, y, x = (part[r][1] for part, r in zip(parts, residue, strict=True))
        rows = grouped[:, :, :, z, y, x].transpose(1, 2).reshape(channels, -1).contiguous()
        window = Window((line_z, line_y, line_x), grad.is_contiguous())
        compute = windowed_last if last else windowed
        found.append(compute(grad, rows, bias, window, groups, number, source))
    shape = (len(grad), *sizes, channels) if last else (len(grad), channels, *sizes)
    out = grad.new_empty(shape, dtype=number.sums)
    if not last and (bias is None or None not in found):
        interleave(found, steps.stride, out, _number(out))
        return out
    for part, residue in zip(found, product(*(range(step) for step in steps.stride)), strict=True):
        places = tuple(slice(r, None, step) for r, step in zip(residue, steps.stride, strict=True))
        here = out[(slice(None), *places)] if last else out[(slice(None), slice(None), *places)]
        if part is None:
            _fill(here, bias, last)
        else:
            here.copy_(part)
    return out


def _there(line: TapLine | None) -> TapLine:
    """Returns a line that is known to have taps."""
    assert line is not None
    return line


def _fill(empty: Tensor, bias: Tensor | None, last: bool) -> None:
    """Writes the sum of no products."""
    if bias is None:
        empty.zero_()
    else:
        empty.copy_(bias if last else bias.view(-1, 1, 1, 1))


def _blocks(x: Tensor) -> Tensor:
    """Returns (batch, channels, z, y, x) as (batch, blocks of channels, z, y, x, channels of a block)."""
    number = _number(x)
    batch, channels, *sizes = x.shape
    width = channels if channels % number.lanes else number.lanes
    target = x.new_empty((batch, channels // width, *sizes, width))
    return turn(x.contiguous(), target, width, sizes[0] * sizes[1] * sizes[2], number)


def channels_first(x: Tensor) -> Tensor:
    """Returns a tensor in channels last as a contiguous one."""
    channels = x.shape[1]
    target = torch.empty(x.shape, dtype=x.dtype)
    return turn(x, target, x.numel() // (len(x) * channels), channels, _number(x))


def channels_last(x: Tensor, form: torch.memory_format) -> Tensor:
    """Returns a contiguous tensor in channels last."""
    channels = x.shape[1]
    target = torch.empty(x.shape, dtype=x.dtype, memory_format=form)
    return turn(x, target, channels, x.numel() // (len(x) * channels), _number(x))


def _parts(
    source: int, kernel: int, size: int, steps: ConvolutionSteps, dim: int
) -> list[tuple[TapLine | None, slice]]:
    """For each residue of the stride: the line of the outputs with it, and which taps they have."""
    stride, padding, dilation = steps.stride[dim], steps.padding[dim], steps.dilation[dim]
    return [spread_line(source, kernel, size, stride, padding, dilation, r) for r in range(stride)]


def _number(x: Tensor) -> Number:
    return {torch.float64: FLOAT64, torch.int32: BFLOAT16}.get(x.dtype, FLOAT32)


def _window(
    x: Tensor, kernel: Three, outputs: Three, steps: ConvolutionSteps, last: bool, is_dense: bool
) -> Window:
    sizes = tuple(x.shape[1:4] if last else x.shape[2:])
    return forward_window(
        sizes, kernel, outputs, steps.stride, steps.padding, steps.dilation, is_dense=is_dense
    )
