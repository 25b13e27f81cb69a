"""Convolutions by one definition, on every CPU, over any number of threads, in any batch and memory format.

    output[o, q] = bias[o] + (c_0 + c_1 + ...)
    c = fma(weight[o, k], x[k, q], c) for each k of the chunk in order, from +0.

The inner dimension is k = (channel of the group, kernel row, kernel column), in that order, in chunks of 256.
The chunks' sums are added in order, and the bias at the end.

The padding's elements are +0 and take part in the chain, as if the input had been padded before: an infinite
or NaN weight gives NaN there. With three or one dimensions k is (channel, plane, row, column) or (channel,
column).

Gradient of the input, and transposed convolution: the chain of an element is over (output channel of the
group, kernel row, kernel column) in that order, in chunks of 256. With a stride some taps fall between two
elements of the output's gradient: those take no part. Taps that fall beside it multiply +0.

Gradient of the weight: the chain is over (image, output row, output column) in that order, in chunks of 256;
their sums are added in order. Gradient of the bias: `torch.sum`.

Every NaN is the one quiet NaN with no sign. float64 is the same in its own arithmetic. bfloat16 and float16
are read as float32, all is float32, and the result is rounded once.

With bfloat16, an output and a gradient of the input take two channels of a group at a time: k = (pair of
channels, kernel row, kernel column), the odd channel first, as `product` takes pairs; a gradient of the
weight takes two images. Denormals are flushed to zero, as there. A last channel or image without a partner
has one of zeros. There are no pairs in a group of one channel, in a batch of one image, and in the weight's
gradient of a depthwise convolution.
"""

from __future__ import annotations

from typing import NamedTuple

Three = tuple[int, int, int]


class ConvolutionSteps(NamedTuple):
    """The parameters of a convolution, each for three dimensions."""

    stride: Three
    padding: Three
    dilation: Three
    groups: int
