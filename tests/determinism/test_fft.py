"""Fourier transforms: the same bits at any thread count, over shapes, dimensions and kinds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fft

from op_testing import over_threads, replaced
from samebits.determinism._kernels import fft as fourier

KINDS = ("rfftn", "fftn", "ifftn", "irfftn", "hfft")


def transform(kind, shape, dims, dtype):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=g, dtype=dtype)
    if kind != "rfftn":
        x = torch.complex(x, torch.randn(shape, generator=g, dtype=dtype))
    if kind == "hfft":
        return lambda: fft.hfft(x, dim=dims[-1])
    return lambda: getattr(fft, kind)(x, dim=dims)


ALONE = [(1 << 14,), (1 << 16,), (100_000,), (3**9,), (1 << 20,), (1, 1 << 16, 1)]


@pytest.mark.parametrize("shape", ALONE, ids=str)
def test_a_long_transform_alone(shape):
    """One long transform has one result at 1 to 8 threads."""
    for kind in KINDS[: 2 if max(shape) > 200_000 else None]:
        call = transform(kind, shape, (shape.index(max(shape)),), torch.float32)
        with replaced(fourier):
            assert len(over_threads(call)[0]) == 1, kind


def test_torchs_own_vary():
    """Negative control: of long transforms alone and short real ones of a batch some vary without ours; which, depends on the CPU."""
    known = [(kind, (size,)) for kind in ("rfftn", "fftn", "irfftn") for size in (1 << 14, 1 << 16, 1 << 18)]
    known += [("rfftn", (9, 64)), ("irfftn", (9, 8))]
    assert [
        (kind, shape)
        for kind, shape in known
        if len(over_threads(transform(kind, shape, (len(shape) - 1,), torch.float32))[0]) > 1
    ]


@pytest.mark.parametrize("length", [*range(1, 36), 63, 64, 65, 100, 128, 256])
def test_every_short_length(length):
    """Batches of short transforms of every length have one result at 1 to 8 threads."""
    with replaced(fourier):
        for dtype in (torch.float32, torch.float64):
            g = torch.Generator().manual_seed(1)
            x = torch.randn(37, length, generator=g, dtype=dtype)
            half = torch.complex(*torch.randn(2, 37, length // 2 + 1, generator=g, dtype=dtype))
            for call in (
                lambda: fft.rfft(x),
                lambda: fft.fft(x),
                lambda: fft.irfft(half, n=length),
                lambda: fft.rfft2(x),
            ):
                assert len(over_threads(call)[0]) == 1


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 48), min_size=1, max_size=3),
    st.integers(0, 3),
    st.sampled_from(KINDS),
    st.sampled_from([torch.float32, torch.float64]),
    st.data(),
)
def test_any_shape(sizes, power, kind, dtype, data):
    """Any shape and dimensions: one result at 1 to 8 threads, as close to float64 as torch's own, in its layout."""
    shape = tuple(min(s * 4**power, 60_000) if i == 0 else s for i, s in enumerate(sizes))
    dims = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    if kind in ("irfftn", "hfft") and shape[dims[-1]] == 1:
        return
    call = transform(kind, shape, dims, dtype)
    torch.set_num_threads(2)
    expected = call()
    with replaced(fourier):
        assert len(over_threads(call)[0]) == 1
        ours = call()
    assert (ours.dtype, ours.stride()) == (expected.dtype, expected.stride())
    torch.testing.assert_close(ours, expected)


def test_out_and_gradient():
    """The out form, with its resizing and its errors, and the gradient have one result too."""
    x = torch.randn(1 << 15)
    with replaced(fourier):
        assert len(over_threads(lambda: fft.rfft(x, out=torch.empty(0, dtype=torch.complex64)))[0]) == 1
        with pytest.raises(RuntimeError, match="complex output"):
            fft.rfft(x, out=torch.empty(0))

        def gradient():
            leaf = x.clone().requires_grad_()
            fft.rfft(leaf).abs().square().sum().backward()
            return leaf.grad

        assert len(over_threads(gradient)[0]) == 1
