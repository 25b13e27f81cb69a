"""grid_sample: one result in every call, for every type, and no crash whatever the grid holds."""

import itertools

import pytest
import torch
from torch.nn import functional as F

import samebits

CALLS = """
import sys, torch, samebits
from torch.nn import functional as F
samebits.set_random_seed(0)
on, dtype, mode, padding = sys.argv[1:]
if on == "on":
    samebits.enable_op_determinism()
x = torch.randn(1, 1, 300, 306).to(getattr(torch, dtype))
grid = (torch.rand(1, 64, 64, 2) * 2 - 1).to(x.dtype)
found = set()
for turn in range(20):
    other = [torch.randn(7000 * (turn % 5 + 1)) for _ in range(8)]
    image = x.clone()
    del other
    found.add(F.grid_sample(image, grid, mode, padding, False).float().numpy().tobytes())
print(len(found))
"""


@pytest.mark.slow
@pytest.mark.first_case_quick
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_an_image_wider_than_its_type_counts_has_one_result(python, dtype):
    """20 calls of one process, other memory freed in between: one result under the plain switch, several without."""
    on, off = (int(python(CALLS, word, dtype, "bilinear", "border").stdout) for word in ("on", "off"))
    assert on == 1 < off


EXTREMES = """
import itertools, math, sys, torch, samebits
from torch.nn import functional as F
samebits.set_random_seed(0)
mode = sys.argv[1]
if mode != "off":
    samebits.enable_op_determinism(across=mode)
dtypes = torch.float32, torch.float64, torch.bfloat16, torch.float16
for dtype, d, kind, padding, step in itertools.product(
    dtypes, (2, 3), ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (1, 2)
):
    for planted in (math.nan, math.inf, -math.inf, torch.finfo(dtype).max) if (kind, d) != ("bicubic", 3) else ():
        x = torch.randn(2, 3, *[9] * d).to(dtype)
        grid = (torch.rand(2, *[5] * d, d * step) * 2.4 - 1.2).to(dtype)[..., ::step]
        grid[:, ::2] = planted
        sampled = F.grid_sample(x.requires_grad_(), grid.requires_grad_(), kind, padding, False)
        slope, _ = torch.autograd.grad(sampled.sum(), (x, grid))
        if d == 2 and padding != "zeros" and kind == "bilinear":
            total = torch.sum(slope.double() * x.double()), torch.sum(sampled.double())
            assert torch.allclose(*total, rtol=0.02, atol=0.5), (dtype, d, padding, planted, total)
"""


@pytest.mark.slow
@pytest.mark.first_case_quick
@pytest.mark.parametrize("mode", ["runs", "machines"])
def test_a_grid_of_nan_and_infinity_never_ends_the_process(python, mode):
    """All modes, paddings and types, 2-D and 3-D; the gradient belongs to the pixels that the result was taken from."""
    python(EXTREMES, mode)


@pytest.mark.slow
def test_without_the_switch_it_does(python):
    """Negative control: torch alone ends by a signal, or writes the gradient elsewhere."""
    assert python(EXTREMES, "off", code=None).returncode


def test_nan_in_a_grid_is_minus_one():
    """As torch documents it, in the result and in its gradients."""
    grid = torch.linspace(-1.1, 1.1, 2 * 7 * 7).reshape(1, 7, 7, 2)
    x = torch.linspace(0, 1, 3 * 9 * 9).sin().reshape(1, 3, 9, 9).requires_grad_()
    with samebits.enable_op_determinism():
        for padding, aligned in itertools.product(("border", "reflection"), (False, True)):
            found = []
            for planted in (float("nan"), -1.0):
                grid[0, 2] = planted
                y = F.grid_sample(x, grid.requires_grad_(), padding_mode=padding, align_corners=aligned)
                found.append((y.detach(), *torch.autograd.grad(y.sum(), (x, grid))))
                grid = grid.detach()
            assert all(map(torch.equal, *found))


def test_the_layout_of_the_grid_moves_no_bit():
    """Under across='machines' result and gradients are those of a grid without gaps; without the mode they
    differ.
    """
    x = torch.randn(2, 3, 9, 9, generator=torch.Generator().manual_seed(1)).requires_grad_()
    grid = torch.rand(2, 9, 9, 2, generator=torch.Generator().manual_seed(2)) * 2.4 - 1.2
    layouts = grid, torch.stack([grid, grid], -1)[..., 0], grid.transpose(1, 2).contiguous().transpose(1, 2)

    def results(dtype):
        image, found = x.detach().to(dtype).requires_grad_(), []
        for laid in layouts:
            points = laid.to(dtype).requires_grad_()
            y = F.grid_sample(image, points, padding_mode="border", align_corners=False)
            found.append((y.detach(), *torch.autograd.grad(y.sin().sum(), (image, points))))
        return [all(map(torch.equal, found[0], other)) for other in found[1:]]

    assert False in results(torch.float32)
    with samebits.enable_op_determinism(across="machines"):
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            assert results(dtype) == [True, True]
