"""Bilinear upsampling: the same bits at any thread count, for images of any number of channels."""

import pytest
import torch
from torch.nn import functional as F

from op_testing import THREADS, numbers, over_threads, replaced
from samebits.determinism._kernels import upsample

SIZES = (
    {"scale_factor": 2},
    {"size": (65, 64)},
    {"size": (64, 64)},
    {"scale_factor": 1.7},
    {"size": (300, 7)},
)


def results(channels, dtype, layout, sizes):
    """How many results, with their strides and gradients, there are over thread counts."""
    x = numbers((2, channels, 64, 61), dtype, 0).contiguous(memory_format=layout).requires_grad_()

    def compute():
        made = F.interpolate(x, mode="bilinear", **sizes)
        out = torch.empty(0, dtype=dtype)
        torch._C._nn.upsample_bilinear2d(x.detach(), made.shape[2:], False, out=out)
        return made.detach(), made.is_contiguous(), out, torch.autograd.grad(made.sum(), x)

    return len(over_threads(compute)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_an_image_of_any_number_of_channels_has_the_same_bits_at_any_thread_count(dtype):
    """1 to 5 channels, two layouts, functional, `out=` and gradient: one result; of 3 channels torch alone has two."""
    layouts = (torch.contiguous_format, torch.channels_last)
    assert max(results(3, dtype, layout, SIZES[4]) for layout in layouts) == 2
    with replaced(upsample):
        found = [results(c, dtype, layout, size) for c in range(1, 6) for layout in layouts for size in SIZES]
    assert found == [1] * 50


def test_one_thread_has_the_bits_of_several():
    """The bits of other thread counts do not move: those of one thread become theirs."""
    x = numbers((1, 3, 64, 64), torch.float32, 0)
    expected = [
        F.interpolate(x, scale_factor=2, mode="bilinear") for _ in map(torch.set_num_threads, THREADS)
    ]
    with replaced(upsample):
        torch.set_num_threads(1)
        assert torch.equal(F.interpolate(x, scale_factor=2, mode="bilinear"), expected[1])
    assert not torch.equal(expected[0], expected[1])
