"""Fourier transforms under `across="machines"`: the definition, torch's meaning, one result everywhere."""

import itertools
import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fft

import samebits
from definitions import fourier as fourier_of
from definitions import fourier_of_real
from op_testing import numbers, over_threads, printed_elsewhere, replaced
from product_reference import fma32, fma64
from samebits.arithmetic.fourier.roots import roots
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT
from samebits.determinism._ops import fourier

COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def pairs(shape, dtype, seed):
    """Complex numbers with parts of that type."""
    return torch.view_as_complex(numbers((*shape, 2), dtype, seed))


def test_roots_of_unity_are_correctly_rounded():
    """Each root is that of mpmath with 200 bits, rounded once; quarters are exact."""
    with mpmath.workprec(200):
        for n in (1, 2, 3, 4, 5, 7, 12, 16, 421, 1024):
            for k, root in enumerate(roots(n).tolist()):
                exact = mpmath.expjpi(mpmath.mpf(-2 * k) / n)
                assert root == complex(float(exact.real), float(exact.imag)), (k, n)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64))
def test_a_transform_is_the_definition(dtype):
    """Lengths of every radix, of one pass to four and of two halves have the bits of plain recursion over exact fused operations."""
    fma = fma32 if dtype == torch.float32 else fma64
    for n in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 20, 30, 63, 64, 128, 150, 256, 260, 338, 400, 1024):
        x = pairs((5, n), dtype, n)
        expected = fourier_of(np.ascontiguousarray(torch.view_as_real(x).numpy().transpose(2, 0, 1)), fma)
        real = numbers((5, 2 * n), dtype, n)
        with replaced(fourier):
            assert (torch.view_as_real(fft.fft(x)).numpy().transpose(2, 0, 1) == expected).all(), n
            columns = fft.fft(x.t().contiguous().repeat_interleave(20, 1), dim=0)[:, ::20].t()
            assert torch.equal(columns, fft.fft(x))
            back = fft.ifft(torch.complex(x.imag, x.real), norm="forward")
            assert torch.equal(back, torch.complex(fft.fft(x).imag, fft.fft(x).real))
            found = torch.view_as_real(fft.rfft(real)).numpy().transpose(2, 0, 1)
        assert (found == fourier_of_real(real.numpy(), fma)).all(), n


FORMS = {
    "fft": lambda x, z, h, n: fft.fft(z),
    "ifft": lambda x, z, h, n: fft.ifft(z),
    "fft of real": lambda x, z, h, n: fft.fft(x),
    "rfft": lambda x, z, h, n: fft.rfft(x),
    "irfft": lambda x, z, h, n: fft.irfft(h, n=n),
    "hfft": lambda x, z, h, n: fft.hfft(h, n=n),
    "ihfft": lambda x, z, h, n: fft.ihfft(x),
    "by the root": lambda x, z, h, n: fft.fft(z, norm="ortho"),
    "by the length": lambda x, z, h, n: fft.rfft(x, norm="forward"),
    "out": lambda x, z, h, n: fft.rfft(x, out=torch.empty(0, dtype=h.dtype)),
    "other length": lambda x, z, h, n: fft.fft(z, n=n + 3),
}


class LongDoubles:
    """The functions of `torch.fft`, by NumPy in long doubles: MKL's float64 is off by 2e-14 for some lengths."""

    def __getattr__(self, name):
        def call(x, dim=None, n=None, s=None, norm=None, out=None):
            given = {"norm": norm, **({"s": s, "axes": dim} if name.endswith("n") else {"n": n})}
            wide = np.clongdouble if x.is_complex() else np.longdouble
            made = getattr(np.fft, name)(x.numpy().astype(wide), **given)
            return torch.from_numpy(made.astype(np.complex128 if np.iscomplexobj(made) else np.float64))

        return call


def exactly(call, *operands):
    """What a call of `fft` gives for float64 operands, to float64's last place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "fft", LongDoubles())
        return call(*operands)


def agrees(call, *operands):
    """One result over threads, with torch's shape and strides, as near to float64 as torch's; returns it."""
    torchs = call(*operands)
    exact = exactly(call, *(x.to(torch.complex128 if x.is_complex() else torch.float64) for x in operands))
    with replaced(fourier):
        seen, ours = over_threads(lambda: call(*operands), (1, 2, 3, 5))
    assert len(seen) == 1
    assert (ours.dtype, ours.shape) == (torchs.dtype, torchs.shape)
    assert [one for one, size in zip(ours.stride(), ours.shape) if size > 1] == [
        one for one, size in zip(torchs.stride(), torchs.shape) if size > 1
    ]
    wide = ours.dtype in (torch.float64, torch.complex128)
    scale = exact.abs().max().item()
    slack = 2e-15 * scale if wide else 2 * (torchs - exact).abs().max().item() + 1e-7 * scale
    assert (ours - exact).abs().max().item() <= slack
    return ours


LENGTHS = (
    *range(1, 36),
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    257,
    400,
    421,
    1000,
    1024,
    4096,
    5000,
    10007,
    1 << 15,
    3**9,
)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", COMPLEX)
@pytest.mark.parametrize("n", LENGTHS)
def test_every_length(n, dtype):
    """Every form of a length, prime ones too, means what torch's means and has one result at 1, 2, 3 and 5 threads."""
    rows = 19 if n < 300 else 2
    x, z, h = numbers((rows, n), dtype, n), pairs((rows, n), dtype, n), pairs((rows, n // 2 + 1), dtype, n)
    for call in FORMS.values():
        agrees(lambda x, z, h, call=call: call(x, z, h, n), x, z, h)


KINDS = ("rfftn", "fftn", "ifftn", "irfftn", "fftn of real")


@pytest.mark.slow
@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.sampled_from(KINDS), st.sampled_from([*COMPLEX]), st.sampled_from(("plain", "transposed", "strided", "expanded")), st.data(),
)  # fmt: skip
def test_any_shape(sizes, kind, dtype, layout, data):
    """Any dimensions, in any order and layout: torch's values and strides, one result, that of a contiguous copy."""
    dims = data.draw(st.lists(st.integers(0, len(sizes) - 1), min_size=1, unique=True))
    make = numbers if kind in ("rfftn", "fftn of real") else pairs
    x = make(tuple(sizes), dtype, 1)
    if layout == "transposed":
        x = make(tuple(sizes[::-1]), dtype, 1).permute([*range(len(sizes))][::-1])
    elif layout == "strided":
        x = make((*sizes[:-1], 2 * sizes[-1]), dtype, 1)[..., ::2]
    elif layout == "expanded":
        x = x[:1].expand(*sizes)
    name = kind.partition(" ")[0]
    arguments = {"s": [*(sizes[d] for d in dims[:-1]), 2 * sizes[dims[-1]] + 1]} if kind == "irfftn" else {}

    def call(x):
        return getattr(fft, name)(x, dim=dims, **arguments)

    found = agrees(call, x)
    with replaced(fourier):
        assert torch.equal(call(x.clone(memory_format=torch.contiguous_format)), found)


@pytest.mark.slow
def test_the_error_is_at_most_twice_torchs():
    """Against long doubles the root mean square error is at most twice that of torch's, in both types."""
    for n, dtype in itertools.product((16, 47, 100, 256, 421, 1000, 1024), COMPLEX):
        x = pairs((4, n), dtype, n)
        turns = np.outer(np.arange(n), np.arange(n)) % n / np.longdouble(n)
        angle = -8 * np.arctan(np.longdouble(1)) * turns
        exact = x.numpy().astype(np.clongdouble) @ (np.cos(angle) + 1j * np.sin(angle))
        with replaced(fourier):
            ours = fft.fft(x).numpy()
        errors = [np.sqrt((np.abs(found - exact) ** 2).mean()) for found in (ours, fft.fft(x).numpy())]
        assert errors[0] <= 2 * errors[1], (n, dtype, errors)


@pytest.mark.slow
def test_a_row_does_not_see_the_batch():
    """A row has the same bits alone and in any place of a batch, also of lengths that go several at a time."""
    with replaced(fourier):
        for n, dtype in itertools.product((20, 64, 67, 300, 421, 1024), COMPLEX):
            z, x = pairs((70, n), dtype, 1), numbers((70, n), dtype, 2)
            assert torch.equal(fft.rfft(x.flatten()[1:][:n]), fft.rfft(x.flatten()[1:][:n].clone()))
            for call, operand in ((fft.fft, z), (fft.ifft, z), (fft.rfft, x)):
                whole = call(operand)
                for row in (0, 1, 15, 16, 69):
                    assert torch.equal(call(operand[row]), whole[row])
                    assert torch.equal(call(operand[: row + 1])[row], whole[row])


def test_what_is_not_ours_is_torchs():
    """Empty tensors, no dimensions and wrong arguments give what torch gives; a NaN stays in its row, as the one NaN."""
    z = pairs((4, 6), torch.float32, 1)
    calls = (
        lambda: fft.fft(z[:0]), lambda: fft.fftn(z, dim=()), lambda: fft.fft(torch.tensor(1.0)), lambda: fft.rfft(z),
        lambda: fft.fft(z, n=0), lambda: fft.rfft(z.real.half()), lambda: fft.fft(z, dim=2), lambda: fft.irfft(z, n=-1),
        lambda: fft.rfft(z.real, out=torch.empty(0)), lambda: fft.fft(z, norm="no"), lambda: fft.fft(torch.ones(1, 1)),
        lambda: fft.fft(torch.tensor([[2, 4]])), lambda: torch.ops.aten._fft_r2c(z, [1], 0, True),
    )  # fmt: skip
    expected = [outcome(call) for call in calls]
    with samebits.enable_op_determinism(across="machines"):
        assert [outcome(call) for call in calls] == expected
        clean = fft.fft(z)
        z[1, 2] = complex(-math.nan, -math.nan)
        found = fft.fft(z)
        assert torch.equal(found[[0, 2, 3]], clean[[0, 2, 3]])
        assert set(torch.view_as_real(found[1]).view(torch.int32).flatten().tolist()) == {0x7FC00000}
        x = numbers((3, 8), torch.float32, 1)
        x[0] = math.nan
        assert set(torch.view_as_real(fft.rfft(x)[0]).view(torch.int32).flatten().tolist()) == {0x7FC00000}


def outcome(call):
    try:
        made = call()
    except (RuntimeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    return made.shape, made.dtype, made.tolist()


@pytest.mark.slow
def test_gradients():
    """gradcheck of transforms of complex and real numbers, of even and odd lengths, of one dimension and of two."""
    with replaced(fourier):
        for n in (5, 6):
            x, z = (
                numbers((3, n), torch.float64, n).requires_grad_(),
                pairs((3, n), torch.float64, n).requires_grad_(),
            )
            for call, operand in (
                (fft.fft, x), (fft.fft, z), (fft.ifft, z), (fft.rfft, x), (fft.rfft2, x), (fft.irfft, z), (fft.hfft, z),
                (fft.fft2, z), (lambda z, n=n: fft.irfft2(z, s=(3, n)), z), (lambda x: fft.fftn(x, norm="ortho"), x),
            ):  # fmt: skip
                assert torch.autograd.gradcheck(call, (operand,))


TRAINING = """
import sys, torch, samebits
from torch import fft
from samebits._digest import of_value
samebits.set_random_seed(1)
samebits.enable_op_determinism(across=sys.argv[1]) if sys.argv[1] != "none" else None
def spectrogram():
    x, window = torch.randn(2, 4000, requires_grad=True), torch.hann_window(400)
    made = torch.view_as_real(torch.stft(x, 400, 160, window=window, return_complex=True))
    back = torch.istft(torch.view_as_complex(made), 400, 160, window=window, length=4000)
    loss = (made.square().sum(-1) + 1e-6).sqrt().log().mean()
    return loss.detach(), back.detach(), torch.autograd.grad(loss, x)
def operator():
    x, weight = torch.randn(2, 3, 16, 18, requires_grad=True), torch.randn(2, 3, 5, 6, 6, requires_grad=True)
    modes, (real, imaginary) = torch.view_as_real(fft.rfft2(x))[:, :, :6, :6], weight
    product = lambda part, w: torch.einsum("bixy,ioxy->boxy", modes[..., part], w)
    made = torch.stack([product(0, real) - product(1, imaginary), product(0, imaginary) + product(1, real)], -1)
    made = torch.nn.functional.pad(made, (0, 0, 0, 4, 0, 10))
    result = fft.irfft2(torch.view_as_complex(made), s=(16, 18))
    return result.detach(), torch.autograd.grad(result.square().sum(), (x, weight))
def transforms():
    found = []
    for n in (*range(1, 40), 64, 67, 100, 243, 256, 400, 421, 1000, 1024, 4099, 1 << 14):
        for dtype in (torch.float32, torch.float64):
            x = torch.randn(3, n, 2, dtype=dtype)
            z = torch.view_as_complex(x)
            found += [fft.fft(z), fft.ifft(z, norm="ortho"), fft.rfft(x, dim=1), fft.irfft(z, n=2 * n - 1), fft.irfft(z), fft.fftn(x)] if n > 1 else [fft.fft(z)]
    return found
for compute in (spectrogram, operator, transforms):
    found = set()
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads), torch.manual_seed(0)
        found.add(str(of_value(compute())))
    print(compute.__name__, *sorted(found))
"""


@pytest.mark.slow
def test_the_same_bits_on_another_cpu():
    """Spectrogram losses, a Fourier neural operator's layer and transforms of 51 lengths: one result over threads, and with AVX2's kernels."""
    here = printed_elsewhere("-W", "ignore", "-c", TRAINING, "machines")
    assert [len(line.split()) for line in here.splitlines()] == [2, 2, 2]
    assert here == printed_elsewhere("-W", "ignore", "-c", TRAINING, "machines", **AVX2_ENVIRONMENT)


@pytest.mark.slow
def test_torchs_own_vary():
    """Negative control: without ours the same program has several results over threads."""
    here = printed_elsewhere("-W", "ignore", "-c", TRAINING, "none")
    assert any(len(line.split()) > 2 for line in here.splitlines())


def test_a_spectrogram_and_its_gradient_run_in_the_mode():
    """torch.stft, its gradient, and istft run under across="machines"; the transform of a transform is the input."""
    x, window = numbers((2, 3000), torch.float32, 1).requires_grad_(), torch.hann_window(256)
    with samebits.enable_op_determinism(across="machines"):
        made = torch.stft(x, 256, 64, window=window, return_complex=True)
        torch.view_as_real(made).square().sum().backward()
        back = torch.istft(made.detach(), 256, 64, window=window, length=3000)
    torch.testing.assert_close(back, x.detach(), rtol=1e-5, atol=1e-5)
    assert x.grad is not None and x.grad.abs().sum() > 0
