"""The weight gradient of dilated 16-bit convolutions in channels last, where oneDNN may read memory that nobody wrote."""

import torch

from op_testing import replaced
from samebits.determinism._kernels import convolution

aten = torch.ops.aten
REST = ([1, 1], [0, 0], [2, 2], False, [0, 0], 32)


def weight_gradient(convert=lambda x: x):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(4, 32, 40, 40, generator=g).bfloat16().contiguous(memory_format=torch.channels_last)
    w = torch.randn(32, 1, 3, 3, generator=g).bfloat16()
    x, w = convert(x), convert(w)
    grad = convert(torch.randn(4, 32, 36, 36, generator=g).bfloat16()).contiguous(
        memory_format=torch.channels_last
    )
    return aten.convolution_backward(grad, x, w, None, *REST, [True, True, False])[1]


def after_other_memory(seed):
    """The gradient, after other memory was written and freed."""
    junk = [torch.full((50_000 * seed,), float(seed)) for _ in range(5)]
    del junk
    return weight_gradient()


def test_a_weight_gradient_that_reads_unwritten_memory_does_not():
    """oneDNN's dilated bfloat16 weight gradient in channels_last is garbage on some machines; ours is right, and repeats."""
    exact = weight_gradient(lambda x: x.double())
    with replaced(convolution):
        found = [after_other_memory(seed) for seed in (1, 2, 3)]
    assert all(torch.equal(found[0], other) for other in found)
    assert (found[0] - exact).norm() < 4e-3 * exact.norm()


def test_other_convolutions_have_torch_s_bits():
    """A convolution that is not dilated, and its gradients, have the bits and strides of torch's own kernel."""
    g = torch.Generator().manual_seed(1)
    x, w, grad = (torch.randn(shape, generator=g) for shape in ((2, 3, 9, 9), (4, 3, 3, 3), (2, 4, 9, 9)))
    given = (grad, x, w, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True] * 3)
    theirs = aten.convolution_backward(*given)
    with replaced(convolution):
        ours = aten.convolution_backward(*given)
    assert all(torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(ours, theirs, strict=True))
