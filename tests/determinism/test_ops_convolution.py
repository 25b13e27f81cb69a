"""Convolutions of `across="machines"`: the definition, bit for bit, over CPUs, threads, batches and memory
formats.
"""

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from op_testing import numbers, printed_elsewhere, replaced
from samebits._digest import of_value
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT
from samebits.determinism._ops import convolution
from samebits.determinism._ops.convolution import _TYPES

pytestmark = pytest.mark.slow

aten = torch.ops.aten
THREADS = (1, 2, 3, 7)


class Sample:
    """Tensors and parameters of a convolution: channels of a group, groups, and the rest for two dimensions."""

    def __init__(self, n=2, c=3, o=4, side=(7, 9), kernel=(3, 3), stride=1, padding=1, dilation=1, groups=1, transposed=False,
                 extra=0, dtype=torch.float32, last=False):  # fmt: skip
        rank = len(side)
        self.x = numbers((n, c * groups, *side), dtype, 1)
        shape = (c * groups, o, *kernel) if transposed else (o * groups, c, *kernel)
        self.w = numbers(shape, dtype, 2)
        self.b = numbers((o * groups,), dtype, 3)
        each = [[v] * rank if isinstance(v, int) else list(v) for v in (stride, padding, dilation, extra)]
        self.rest = (*each[:3], transposed, each[3], groups)
        if last:
            form = torch.channels_last if rank == 2 else torch.channels_last_3d
            self.x = self.x.contiguous(memory_format=form)

    def results(self, convert=lambda t: t):
        """The output and the gradients of input, weight and bias."""
        x, w, b = convert(self.x), convert(self.w), convert(self.b)
        y = aten.convolution(x, w, b, *self.rest)
        grad = convert(numbers(y.shape, self.x.dtype, 4))
        gradients = aten.convolution_backward(grad, x, w, None, *self.rest, [True, True, False])
        return [y, *gradients[:2]]


def fma(a, b, c):
    """a b + c in float32, rounded once: the sum in float64 is rounded to odd, which hides no bit from the second rounding."""
    p, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
    s = p + c
    t = s - p
    lost = (p - (s - t)) + (c - t)
    bits = s.view(np.int64)
    up = np.where((lost > 0) == (s > 0), 1, -1)
    bits = np.where((lost != 0) & (bits & 1 == 0), bits + up, bits)
    return bits.view(np.float64).astype(np.float32)


def chain(pairs, shape):
    """The definition: chunks of 256, each a chain of fused multiply-adds from +0; their sums are added in order."""
    total, sums = None, np.zeros(shape, np.float32)
    for count, (a, b) in enumerate(pairs, 1):
        sums = fma(np.broadcast_to(a, shape), np.broadcast_to(b, shape), sums)
        if count % 256 == 0 or count == len(pairs):
            total = sums if total is None else total + sums
            sums = np.zeros(shape, np.float32)
    return np.zeros(shape, np.float32) if total is None else total


def taken_together(count, is_paired):
    """The channels or images whose numbers are multiplied one after the other: in pairs the odd one first, a missing one as None."""
    if not is_paired:
        return [(one,) for one in range(count)]
    return [(one + 1 if one + 1 < count else None, one) for one in range(0, count, 2)]


def gather_exactly(x, w, stride, padding, dilation, groups, outputs, is_short):
    """A convolution of arrays by the definition, one k after the other."""
    n, (o, c, ky, kx) = len(x), w.shape
    far = [s * (q - 1) + d * (k - 1) + 1 for s, q, d, k in zip(stride, outputs, dilation, (ky, kx))]
    padded = np.zeros((n, c * groups, *far), np.float32)
    for y in range(far[0]):
        for z in range(far[1]):
            i, j = y - padding[0], z - padding[1]
            if 0 <= i < x.shape[2] and 0 <= j < x.shape[3]:
                padded[:, :, y, z] = x[:, :, i, j]
    parts = []
    for group in range(groups):
        pairs = []
        for channels in taken_together(c, is_short and c > 1):
            for i in range(ky):
                for j in range(kx):
                    rows = slice(
                        i * dilation[0], i * dilation[0] + (outputs[0] - 1) * stride[0] + 1, stride[0]
                    )
                    columns = slice(
                        j * dilation[1], j * dilation[1] + (outputs[1] - 1) * stride[1] + 1, stride[1]
                    )
                    for channel in channels:
                        if channel is None:
                            pairs.append((np.zeros((), np.float32), np.zeros((), np.float32)))
                            continue
                        weight = w[group * o // groups : (group + 1) * o // groups, channel, i, j]
                        image = padded[:, group * c + channel, None, rows, columns]
                        pairs.append((weight[None, :, None, None], image))
        parts.append(chain(pairs, (n, o // groups, *outputs)))
    return np.concatenate(parts, 1)


def spread_exactly(grad, w, stride, padding, dilation, groups, sizes, is_short):
    """The gradient of the input by the definition: for each element those taps that fall on the grid of the stride."""
    n, (o, c, ky, kx) = len(grad), w.shape
    found = np.zeros((n, c * groups, *sizes), np.float32)
    each = o // groups
    for y in range(sizes[0]):
        for z in range(sizes[1]):
            for group in range(groups):
                pairs = []
                for outputs in taken_together(each, is_short and each > 1):
                    for i in range(ky):
                        for j in range(kx):
                            p, r = y + padding[0] - i * dilation[0], z + padding[1] - j * dilation[1]
                            if p % stride[0] or r % stride[1]:
                                continue
                            p, r = p // stride[0], r // stride[1]
                            inside = 0 <= p < grad.shape[2] and 0 <= r < grad.shape[3]
                            for one in outputs:
                                if one is None:
                                    pairs.append((np.zeros((), np.float32), np.zeros((), np.float32)))
                                    continue
                                output = group * each + one
                                value = grad[:, output, p, r] if inside else np.zeros(n, np.float32)
                                pairs.append((w[None, output, :, i, j], value[:, None]))
                found[:, group * c : (group + 1) * c, y, z] = chain(pairs, (n, c))
    return found


def correlate_exactly(x, grad, stride, padding, dilation, groups, kernel, is_short):
    """The gradient of the weight by the definition: over images, rows and columns of the output."""
    n, o = grad.shape[:2]
    c = x.shape[1] // groups
    reach = [s * (q - 1) + d * (k - 1) + 1 for s, q, d, k in zip(stride, grad.shape[2:], dilation, kernel)]
    padded = np.zeros(
        (n, c * groups, *(max(r, s + 2 * p) for r, s, p in zip(reach, x.shape[2:], padding))), np.float32
    )
    padded[:, :, padding[0] : padding[0] + x.shape[2], padding[1] : padding[1] + x.shape[3]] = x
    parts = []
    for group in range(groups):
        pairs = []
        for images in taken_together(n, is_short and n > 1 and not (c == 1 and o == groups)):
            for y in range(grad.shape[2]):
                for z in range(grad.shape[3]):
                    rows = y * stride[0] + dilation[0] * np.arange(kernel[0])
                    columns = z * stride[1] + dilation[1] * np.arange(kernel[1])
                    for image in images:
                        if image is None:
                            pairs.append((np.zeros((), np.float32), np.zeros((), np.float32)))
                            continue
                        window = padded[image, group * c : (group + 1) * c][:, rows][:, :, columns]
                        error = grad[image, group * o // groups : (group + 1) * o // groups, y, z]
                        pairs.append((error[:, None, None, None], window[None]))
        parts.append(chain(pairs, (o // groups, c, *kernel)))
    return np.concatenate(parts)


def same_bits(a, b):
    return np.array_equal(np.asarray(a).view(np.int32), np.asarray(b).view(np.int32))


shapes = st.fixed_dictionaries(
    {
        "n": st.integers(1, 3),
        "c": st.sampled_from((1, 2, 3, 5, 30)),
        "o": st.sampled_from((1, 2, 4, 13)),
        "side": st.tuples(st.integers(3, 12), st.sampled_from((3, 7, 8, 16, 19, 33))),
        "kernel": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "stride": st.tuples(st.integers(1, 3), st.integers(1, 3)),
        "padding": st.tuples(st.integers(0, 3), st.integers(0, 3)),
        "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
        "groups": st.sampled_from((1, 1, 2, 3)),
        "transposed": st.booleans(),
    }
)


def fits(sample):
    """Torch takes these parameters."""
    stride, padding, dilation, transposed, _, _ = sample.rest
    pairs = zip(sample.x.shape[2:], sample.w.shape[2:], stride, padding, dilation, strict=True)
    if transposed:
        return all((n - 1) * s - 2 * p + d * (k - 1) + 1 > 0 for n, k, s, p, d in pairs)
    return all(n + 2 * p >= d * (k - 1) + 1 for n, k, s, p, d in pairs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@settings(derandomize=True, max_examples=25, deadline=None)
@given(shape=shapes, last=st.booleans())
def test_outputs_and_gradients_are_those_of_the_definition(dtype, shape, last):
    """Every bit of an output, an input's gradient and a weight's gradient follows from the chains, one k after the other."""
    sample = Sample(**shape, dtype=dtype, last=last)
    if not fits(sample):
        return
    with replaced(convolution):
        found = sample.results()
    y = found[0]
    x, w, b, grad = (t.float().numpy() for t in (sample.x, sample.w, sample.b, numbers(y.shape, dtype, 4)))
    b = b[None, :, None, None]
    stride, padding, dilation, transposed, _, groups = sample.rest
    rest, short = (stride, padding, dilation, groups), dtype == torch.bfloat16
    if transposed:
        expected = (
            spread_exactly(x, w, *rest, y.shape[2:], short) + b,
            gather_exactly(grad, w, *rest, x.shape[2:], short),
            correlate_exactly(grad, x, *rest, w.shape[2:], short),
        )
    else:
        expected = (
            gather_exactly(x, w, *rest, y.shape[2:], short) + b,
            spread_exactly(grad, w, *rest, x.shape[2:], short),
            correlate_exactly(x, grad, *rest, w.shape[2:], short),
        )
    for value, exact in zip(found, expected, strict=True):
        assert same_bits(value.float().numpy(), torch.from_numpy(exact).to(dtype).float().numpy())


def test_denormals_of_bfloat16_are_zeros():
    """Pairs of bfloat16 numbers flush denormals, as inputs and as sums, on every CPU; float32 keeps them."""
    tiny = torch.tensor(2.0**-130)
    x, w = torch.full((2, 2, 5, 5), tiny), torch.ones(3, 2, 3, 3)
    with replaced(convolution):
        assert aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1).count_nonzero() == 150
        short = [t.bfloat16() for t in (x, w)]
        found = aten.convolution(*short, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
        backward = aten.convolution_backward(
            short[0][:, :1].expand(-1, 3, -1, -1).contiguous(), *short, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )  # fmt: skip
    assert short[0].count_nonzero() == 100
    assert not any(t.count_nonzero() for t in (found, *backward[:2]))


CASES = {
    "odd": {"n": 3, "c": 5, "o": 13, "side": (17, 23)},
    "long chains": {"n": 2, "c": 70, "o": 37, "side": (12, 12)},
    "small images": {"n": 5, "c": 40, "o": 24, "side": (7, 7)},
    "strided": {"n": 2, "c": 9, "o": 16, "side": (21, 21), "stride": 2},
    "dilated": {"n": 2, "c": 9, "o": 8, "side": (20, 33), "dilation": 2, "padding": 2},
    "one by one": {"n": 2, "c": 300, "o": 20, "side": (16, 16), "kernel": (1, 1), "padding": 0},
    "one by one, strided": {
        "n": 3,
        "c": 33,
        "o": 20,
        "side": (15, 15),
        "kernel": (1, 1),
        "padding": 0,
        "stride": 2,
    },
    "depthwise": {"n": 3, "c": 1, "o": 1, "groups": 37, "side": (15, 29)},
    "depthwise, doubled": {"n": 2, "c": 1, "o": 2, "groups": 9, "side": (15, 15), "stride": 2},
    "grouped": {"n": 2, "c": 4, "o": 4, "groups": 8, "side": (14, 14)},
    "one image": {"n": 1, "c": 32, "o": 96, "side": (28, 28)},
    "one channel": {"n": 9, "c": 1, "o": 32, "side": (28, 28), "padding": 0},
    "transposed": {"n": 2, "c": 20, "o": 12, "side": (9, 11), "stride": 2, "extra": 1, "transposed": True},
    "channels last": {"n": 3, "c": 16, "o": 20, "side": (13, 13), "last": True},
    "a line": {"n": 3, "c": 20, "o": 30, "side": (100,), "kernel": (5,)},
    "a volume": {"n": 2, "c": 4, "o": 6, "side": (5, 6, 7), "kernel": (3, 2, 3)},
}
"""Of every way in which the kernels cut and copy."""


def digests(types=(torch.float32,)):
    """The digest of each case's results."""
    return {
        f"{name}, {str(dtype)[6:]}": of_value([t.contiguous() for t in Sample(**case, dtype=dtype).results()])
        for name, case in CASES.items()
        for dtype in types
    }


def test_threads_do_not_change_bits():
    """Outputs and gradients have the same bits with 1, 2, 3 and 7 threads; torch's own do not."""
    seen, torchs = [], []
    for threads in THREADS:
        torch.set_num_threads(threads)
        torchs.append(digests())
        with replaced(convolution):
            seen.append(digests(_TYPES[:3]))
    assert all(one == seen[0] for one in seen)
    assert any(one != torchs[0] for one in torchs)


def played(ours, **variables):
    """The digests of another process, in which environment variables play another CPU."""
    return printed_elsewhere(__file__, *(["ours"] if ours else []), **variables)


@pytest.mark.slow
def test_a_cpu_with_avx2_has_the_same_bits():
    """A process that plays a CPU with AVX2 and no more computes the same bits, in all types; with torch's kernels it does not."""
    assert played(True) == played(True, **AVX2_ENVIRONMENT)
    if "AVX512" in torch.backends.cpu.get_cpu_capability():
        assert played(False) != played(False, **AVX2_ENVIRONMENT)


def test_a_batch_does_not_change_an_images_result():
    """An image's output and input gradient are the same alone, first, last and in the middle of batches."""
    for case in ("odd", "small images", "strided", "transposed", "one by one", "depthwise"):
        sample = Sample(**{**CASES[case], "n": 33})
        with replaced(convolution):
            whole = sample.results()[:2]
            for at in (0, 16, 32):
                for size in (1, 2, 17):
                    part = Sample(**CASES[case])
                    begin = max(0, min(at, 33 - size))
                    part.x, part.w, part.b = sample.x[begin : begin + size], sample.w, sample.b
                    y = aten.convolution(part.x, part.w, part.b, *part.rest)
                    grad = numbers(whole[0].shape, torch.float32, 4)[begin : begin + size]
                    gx = aten.convolution_backward(
                        grad, part.x, part.w, None, *part.rest, [True, False, False]
                    )[0]
                    assert torch.equal(y, whole[0][begin : begin + size])
                    assert torch.equal(gx, whole[1][begin : begin + size])


def steps(t):
    """The strides that count: of dimensions with more than one element."""
    return [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size > 1]


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("case", ["odd", "transposed", "depthwise", "one by one", "a volume"])
def test_memory_formats_and_views_do_not_change_bits_and_follow_torchs(case, dtype):
    """Channels last and views give the same values, and results in the memory format that torch gives."""
    sample = Sample(**CASES[case], dtype=dtype)
    form = torch.channels_last if sample.x.dim() == 4 else torch.channels_last_3d
    wide = lambda t: t.repeat_interleave(2, -1)[..., ::2] if t.dim() > 1 else t  # noqa: E731
    for convert in (lambda t: t.contiguous(memory_format=form) if t.dim() > 1 else t, wide):
        torchs = sample.results(convert)
        with replaced(convolution):
            plain, found = sample.results(), sample.results(convert)
        # where oneDNN lacks a type, torch's other kernel for volumes knows no channels last: its formats follow the CPU
        supports = {torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported}
        supports[torch.bfloat16] = torch.ops.mkldnn._is_mkldnn_bf16_supported
        if case != "a volume" or dtype not in supports or supports[dtype]():
            assert [steps(t) for t in found] == [steps(t) for t in torchs]
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


@pytest.mark.parametrize("dtype", _TYPES)
def test_results_are_as_near_as_torchs(dtype):
    """The error against float64 is at most twice torch's, or four units in the last place of the largest result."""
    for case in CASES.values():
        sample = Sample(**case, dtype=dtype)
        exact, torchs = sample.results(torch.Tensor.double), sample.results()
        with replaced(convolution):
            found = sample.results()
        for value, other, right in zip(found, torchs, exact, strict=True):
            assert (value.dtype, value.shape) == (other.dtype, other.shape)
            # there torch's own result is what both are compared with
            count = 16 if dtype == torch.float64 else 4
            units = count * torch.finfo(dtype).eps * right.abs().max()
            assert (value - right).abs().max() <= 2 * (other - right).abs().max() + units


@pytest.mark.parametrize(
    ("dtype", "cases"),
    [(torch.float16, ("odd", "long chains", "transposed")), (torch.bfloat16, ("depthwise",))],
)
def test_short_types_without_pairs_are_float32_rounded_once(dtype, cases):
    """A result of float16, and of bfloat16 with one channel a group, is that of float32 with the same values, rounded."""
    for case in cases:
        sample = Sample(**CASES[case], dtype=dtype)
        with replaced(convolution):
            found = sample.results()
            wide = sample.results(torch.Tensor.float)
        assert all(torch.equal(a, b.to(dtype)) for a, b in zip(found, wide, strict=True))


def test_padding_is_an_explicit_pad_with_zeros():
    """Padding gives the bits of a padded input, for infinite and NaN weights and inputs too; every NaN is the quiet one."""
    sample = Sample(c=40, o=14, side=(9, 9), padding=1)
    sample.w[0, 0, 0, 0], sample.w[1, 5, 2, 2], sample.x[0, 3, 4, 4] = torch.inf, torch.nan, -torch.inf
    with replaced(convolution):
        y = F.conv2d(sample.x, sample.w, sample.b, padding=1)
        padded = F.conv2d(F.pad(sample.x, (1, 1, 1, 1)), sample.w, sample.b)
    assert torch.equal(y.view(torch.int32), padded.view(torch.int32))
    assert y.isnan().any() and y.isinf().any()
    assert set(y[y.isnan()].view(torch.int32).tolist()) == {0x7FC00000}


@pytest.mark.parametrize(
    "options", [{"padding": 1}, {"stride": 2, "groups": 2}, {"dilation": 2, "padding": 2}]
)
def test_gradients_are_gradients(options):
    """The first and second derivatives of convolutions and transposed ones pass gradcheck in float64."""
    groups = options.get("groups", 1)
    x = numbers((2, 4, 5, 6), torch.float64, 1).requires_grad_()
    w = numbers((4, 4 // groups, 3, 2), torch.float64, 2).requires_grad_()
    b = numbers((4,), torch.float64, 3).requires_grad_()
    v = numbers((4, 4 // groups, 3, 2), torch.float64, 4).requires_grad_()
    with replaced(convolution):
        for function, weight in ((F.conv2d, w), (F.conv_transpose2d, v)):
            call = lambda x, w, b, function=function: function(x, w, b, **options)  # noqa: E731
            assert torch.autograd.gradcheck(call, (x, weight, b))
            assert torch.autograd.gradgradcheck(call, (x, weight, b))


def test_wrong_and_empty_arguments_are_torchs():
    """What torch's kernel refuses raises torch's error; an empty batch gives an empty result."""
    x, w, b = torch.ones(2, 4, 5, 5), torch.ones(6, 2, 3, 3), torch.ones(6)
    wrong = [
        lambda: F.conv2d(x, w),
        lambda: F.conv2d(x, w, groups=2, padding=-1),
        lambda: F.conv2d(x, w, b[:5], groups=2),
        lambda: F.conv2d(x, w.double(), groups=2),
        lambda: F.conv2d(x[..., :2], w, groups=2),
        lambda: F.conv2d(x, w, groups=2, stride=0),
        lambda: F.conv_transpose2d(x, w[:4], groups=2, output_padding=3),
    ]
    messages = []
    for call in wrong:
        with pytest.raises(RuntimeError) as torchs:
            call()
        messages.append(str(torchs.value))
    empty = F.conv2d(x[:0], w, groups=2)
    with replaced(convolution):
        for call, message in zip(wrong, messages, strict=True):
            with pytest.raises(RuntimeError) as ours:
                call()
            assert str(ours.value) == message
        assert F.conv2d(x[:0], w, groups=2).shape == empty.shape
        alone = F.conv2d(x[0], w, b, groups=2)
        assert torch.equal(alone, F.conv2d(x, w, b, groups=2)[0])


def _main():
    types = _TYPES
    if sys.argv[1:] == ["ours"]:
        with replaced(convolution):
            print(digests(types))
    else:
        print(digests(types[:1]))


if __name__ == "__main__":
    _main()
