"""Convolutions whose bits do not depend on the thread count: cut by size, torch's own kernel for each part.

oneDNN picks kernels and blocks by the number of threads: over 1 to 8 threads most weight gradients differ, every
tenth input gradient, and some outputs. Here one axis is cut into parts that are chosen from the sizes alone; each
part is done on one thread, and parts side by side. A convolution has three tensors (input, weight, output) and
three axes (batch, output channels, input channels), and each tensor lacks one axis: parts along an axis read the
tensor that lacks it again and again or, where it is the result, sum it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from math import ceil, prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits._native import torch_threads
from samebits.determinism._kernels import openmp_tasks
from samebits.determinism._replacement import replacements

# What a part costs, in microseconds. Parts are chosen by sizes and these constants, never by what a machine measures.
_CALL = 130.0
"""Its calls from Python, its allocations."""
_ELEMENT = 6e-4
"""An element of a tensor that is read or written; more if it is laid out for the kernel again."""
_PRODUCT = 5e-6
"""A multiply-add, for each byte of an element."""
_MORE = 1.25
"""The cost of all parts together, relative to the whole, at most."""
_THREADS = (1, 2, 8)
"""The thread counts whose times count."""
_COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
_CHANNELS = 32
"""Channels of a part are multiples of this: with fewer, oneDNN's kernels are slower."""

_COMPOSITE = torch._C.DispatchKey.CompositeExplicitAutograd
# Torch registers its kernels of these two ops for all devices at once. A kernel for the CPU goes before them but
# leaves them in place, so they can be called by the key that they are registered for. (They let go of the GIL.)
_forward = partial(torch.ops.aten._convolution.default._op_dk, _COMPOSITE)
_backward = partial(torch.ops.aten.convolution_backward.default._op_dk, _COMPOSITE)

Shape = tuple[int, ...]
INPUT, WEIGHT, OUTPUT, BIAS = range(4)


class Sizes(NamedTuple):
    """All that a choice of parts depends on."""

    shapes: tuple[Shape, Shape, Shape]
    """Of input, weight and output."""
    groups: int
    transposed: bool
    itemsize: int


class Axis(NamedTuple):
    """An axis that may be cut."""

    dims: tuple[int | None, int | None, int | None, int | None]
    """Which dimension it is in input, weight, output and bias (None: not there)."""
    size: int
    unit: int = 1
    """Parts begin at multiples of this."""

    def part(self, which: int, tensor: Tensor, start: int, stop: int) -> Tensor:
        """The part of the input, weight, output or bias from `start` to `stop` on this axis."""
        dim = self.dims[which]
        if dim is None:
            return tensor
        width = tensor.shape[dim] // self.size  # more than 1: channels of a group
        return tensor.narrow(dim, start * width, (stop - start) * width)


class ConvolutionCut(NamedTuple):
    """Parts of a convolution along one axis."""

    axis: Axis
    bounds: tuple[int, ...]


_WHOLE = Axis((None, None, None, None), 1)
_GROUPS = (1, 0, 1, 0)


def _axes(sizes: Sizes) -> Iterator[Axis]:
    inputs, weight, outputs = sizes.shapes
    yield Axis((0, None, 0, None), inputs[0])
    if sizes.groups > 1:
        yield Axis(_GROUPS, sizes.groups, ceil(_CHANNELS / min(weight[1], weight[0] // sizes.groups)))
    else:
        out = 1 if sizes.transposed else 0
        yield Axis((None, out, 1, 0), outputs[1], _CHANNELS)
        yield Axis((1, 1 - out, None, None), inputs[1], _CHANNELS)


@lru_cache(maxsize=4096)
def cut(sizes: Sizes, result: int) -> ConvolutionCut:
    """The parts of the computation of one of the three tensors; a single part if nothing is gained by more."""
    best = ConvolutionCut(_WHOLE, (0, 1))
    whole = _price(sizes, result, best)
    lowest = _time(1, whole)
    for axis in _axes(sizes):
        if axis.dims[result] is None and (result != WEIGHT or sizes.itemsize < 4):
            continue  # sums of parts in a short type would round twice
        units = ceil(axis.size / axis.unit)
        for count in (count for count in _COUNTS if count <= units):
            bounds = (min(axis.size, units * part // count * axis.unit) for part in range(count + 1))
            candidate = ConvolutionCut(axis, tuple(bounds))
            price = _price(sizes, result, candidate)
            if count * price < _MORE * whole and _time(count, price) < lowest:
                best, lowest = candidate, _time(count, price)
    return best


def _time(parts: int, price: float) -> float:
    return sum(threads * ceil(parts / threads) * price for threads in _THREADS)


def _price(sizes: Sizes, result: int, cut: ConvolutionCut) -> float:
    """The price of the largest part."""
    inputs, weight, outputs = sizes.shapes
    share = max(stop - start for start, stop in pairwise(cut.bounds)) / cut.axis.size
    products = prod(inputs if sizes.transposed else outputs) * prod(weight[1:])
    price = _CALL + _PRODUCT * sizes.itemsize * share * products
    for which, (shape, dim) in enumerate(zip(sizes.shapes, cut.axis.dims, strict=False)):
        if cut.axis is _WHOLE:
            times = 1.0
        elif dim is None:
            times = 8.0 if which == result else 1.6  # the sum reads and writes fresh memory
        else:
            times = share * (1.4 if dim and which != WEIGHT else 1.0)  # channels are copied out first
        price += _ELEMENT * prod(shape) * times
    return price


def _output_shape(inputs: Shape, weight: Shape, rest: Sequence[Any]) -> Shape:
    """Shape of the output, as in torch's documentation of Conv2d and ConvTranspose2d."""
    rank = len(weight) - 2
    stride, padding, dilation, extra = (
        tuple(v) * rank if len(v) == 1 else tuple(v) for v in (*rest[:3], rest[4])
    )
    taps = [d * (k - 1) + 1 for d, k in zip(dilation, weight[2:], strict=True)]
    sides = list(zip(inputs[2:], stride, padding, taps, extra, strict=True))
    if rest[3]:
        return inputs[0], weight[1] * rest[5], *((n - 1) * s - 2 * p + t + e for n, s, p, t, e in sides)
    return inputs[0], weight[0], *((n + 2 * p - t) // s + 1 for n, s, p, t, _ in sides)


class _Call:
    """One call: its tensors (input, weight and, backwards, the output's gradient) and parameters.

    `rest` is stride, padding, dilation, transposed, output_padding, groups and what may follow.
    """

    def __init__(self, tensors: Sequence[Tensor], outputs: Shape, rest: Sequence[Any]) -> None:
        self.tensors, self.rest = tensors, rest
        x, weight = tensors[:2]
        self.sizes = Sizes((tuple(x.shape), tuple(weight.shape), outputs), rest[5], rest[3], x.element_size())

    def part(self, axis: Axis, start: int, stop: int) -> tuple[list[Tensor], Sequence[Any]]:
        """The tensors and parameters of a part."""
        tensors = [axis.part(which, tensor, start, stop) for which, tensor in enumerate(self.tensors)]
        if axis.dims == _GROUPS:
            return tensors, (*self.rest[:5], stop - start, *self.rest[6:])
        return tensors, self.rest

    @cached_property
    def layout(self) -> torch.memory_format:
        """The memory format that torch gives results."""
        x, weight = self.tensors[:2]
        with torch_threads.single_thread():  # torch's choice of a backend looks at the number of threads
            backend = torch._C._select_conv_backend(x, weight, None, *self.rest[:6], None)
        return torch._C._conv_determine_backend_memory_format(x, weight, backend)

    @property
    def reads_unwritten(self) -> bool:
        """True if oneDNN's weight gradient (`jit_bf16:avx512_core_bf16`) may read memory that was not written.

        Seen for bfloat16 in channels_last with dilation, rows of 40 and more: errors of 100% to 1e35, new ones each run.
        """
        dilated = any(step > 1 for step in self.rest[2])
        return dilated and self.sizes.itemsize == 2 and self.layout != torch.contiguous_format

    def empty(self, which: int) -> Tensor:
        """An empty tensor for a result."""
        return torch.empty(self.sizes.shapes[which], dtype=self.tensors[0].dtype, memory_format=self.layout)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
    if x.dim() != weight.dim():
        return _forward(x, weight, bias, *rest)  # raises
    call = _Call((x, weight), _output_shape(tuple(x.shape), tuple(weight.shape), rest), rest)
    axis, bounds = cut(call.sizes, OUTPUT)
    if axis is _WHOLE:
        with torch_threads.single_thread():
            return _forward(x, weight, bias, *rest)
    result = call.empty(OUTPUT)

    def part(start: int, stop: int) -> None:
        tensors, rest = call.part(axis, start, stop)
        own_bias = None if bias is None else axis.part(BIAS, bias, start, stop)
        axis.part(OUTPUT, result, start, stop).copy_(_forward(*tensors, own_bias, *rest))

    openmp_tasks.run([partial(part, start, stop) for start, stop in pairwise(bounds)])
    return result


Gradients = Sequence[Tensor | None]
"""Of input, weight and bias."""


def _whole_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Sequence[int] | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    """Torch's own, but for what reads unwritten memory."""
    rest, mask = rest[:-1], rest[-1]
    if (
        x.element_size() == 2
        and mask[1]
        and _Call((x, weight, grad), tuple(grad.shape), rest).reads_unwritten
    ):
        return _convolution_backward(grad, x, weight, bias, *rest, mask)
    return tuple(_backward(grad, x, weight, bias, *rest, mask))


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Sequence[int] | None, *rest: Any
) -> tuple[Tensor | None, ...]:
    rest, mask = rest[:-1], rest[-1]
    call = _Call((x, weight, grad), tuple(grad.shape), rest)
    if not (mask[1] and call.reads_unwritten):
        return _gradients(call, bias, mask)
    plain = [tensor.clone(memory_format=torch.contiguous_format) for tensor in call.tensors]
    values = _gradients(_Call(plain, tuple(grad.shape), rest), bias, mask)
    return tuple(v if v is None or v.dim() < 3 else v.contiguous(memory_format=call.layout) for v in values)


def _gradients(call: _Call, bias: Sequence[int] | None, mask: Sequence[bool]) -> tuple[Tensor | None, ...]:
    if all(cut(call.sizes, which).axis is _WHOLE for which in (INPUT, WEIGHT)):
        x, weight, grad = call.tensors
        with torch_threads.single_thread():
            return tuple(_backward(grad, x, weight, bias, *call.rest, mask))
    masks = (mask[0], False, False), (False, mask[1], mask[2])
    jobs = [_Job(call, which, own) for which, own in zip((INPUT, WEIGHT), masks, strict=True) if any(own)]
    parts = iter(openmp_tasks.run([task for job in jobs for task in job.tasks]))
    found = [job.finish([next(parts) for _ in job.tasks]) for job in jobs]
    merged = (
        next((value for value in values if value is not None), None) for values in zip(*found, strict=True)
    )
    return tuple(value if wanted else None for value, wanted in zip(merged, mask, strict=True))


class _Job:
    """The parts of the input's gradient, or of the weight's and the bias's."""

    def __init__(self, call: _Call, result: int, mask: Sequence[bool]) -> None:
        self.axis, bounds = cut(call.sizes, result)
        self.call, self.mask = call, mask
        self.summed = self.axis.dims[result] is None
        self.tasks = [partial(self._part, start, stop) for start, stop in pairwise(bounds)]
        self.results: Gradients = (None, None, None)
        if not self.summed:
            bias = call.tensors[OUTPUT].new_empty(call.sizes.shapes[OUTPUT][1]) if mask[2] else None
            self.results = (*(call.empty(i) if mask[i] else None for i in (INPUT, WEIGHT)), bias)

    def _part(self, start: int, stop: int) -> Gradients:
        axis = self.axis
        (x, weight, grad), rest = self.call.part(axis, start, stop)
        every_part_has_a_bias = self.summed or axis.dims[BIAS] is not None
        mask = (*self.mask[:2], self.mask[2] and (every_part_has_a_bias or start == 0))
        values = _backward(grad, x, weight, [grad.shape[1]], *rest, mask)
        if self.summed:
            return values
        for which, result, value in zip((INPUT, WEIGHT, BIAS), self.results, values, strict=True):
            if result is not None and value is not None:
                axis.part(which, result, start, stop).copy_(value)
        return self.results

    def finish(self, parts: Sequence[Gradients]) -> Gradients:
        """The gradients, once all tasks are done."""
        return [_sum(column) for column in zip(*parts, strict=True)] if self.summed else self.results


def _sum(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum as a tree, in the first of the tensors."""
    tensors = [part for part in parts if part is not None]
    while len(tensors) > 1:
        sums = [a.add_(b) for a, b in zip(tensors[::2], tensors[1::2], strict=False)]
        tensors = sums + tensors[2 * len(sums) :]
    return tensors[0] if tensors else None


_PARTS = "parts cut by size, each on one thread, and a tree sum where the batch is cut"

REPLACEMENTS = (
    *replacements(
        ("_convolution",),
        lambda _: _convolution,
        f"oneDNN blocks by the number of threads: {_PARTS}",
        only_threads=True,
    ),
    *replacements(
        ("convolution_backward",),
        lambda _: _whole_backward,
        "oneDNN reads memory that nobody wrote (bfloat16, channels last, dilated): computed in contiguous form",
    ),
    *replacements(  # takes the place of the one above
        ("convolution_backward",),
        lambda _: _convolution_backward,
        f"oneDNN blocks by the number of threads, and reads unwritten memory (bfloat16, dilated): {_PARTS}",
        only_threads=True,
    ),
)
