"""Convolutions: the same bits at any thread count, forwards and backwards, over shapes, layouts and types."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_testing import THREADS, replaced
from samebits.determinism._kernels import convolution
from samebits.determinism._kernels.convolution import INPUT, OUTPUT, WEIGHT, Sizes, cut

aten = torch.ops.aten


class Case:
    """Random tensors for one convolution, and its output and gradients."""

    def __init__(self, n, c, o, side, kernel=3, stride=1, padding=1, dilation=1, groups=1, transposed=False,
                 bias=True, last=False, dtype=torch.float32, dims=2):  # fmt: skip
        g = torch.Generator().manual_seed(n * 1000 + c + o + side)
        self.x = torch.randn((n, c, *[side] * dims), generator=g).to(dtype)
        if last and dims == 2:
            self.x = self.x.contiguous(memory_format=torch.channels_last)
        shape = (c, o // groups) if transposed else (o, c // groups)
        self.w = torch.randn((*shape, *[kernel] * dims), generator=g).to(dtype)
        self.b = torch.randn(o, generator=g).to(dtype) if bias else None
        self.rest = ([stride] * dims, [padding] * dims, [dilation] * dims, transposed, [0] * dims, groups)
        output = aten.convolution(self.x, self.w, self.b, *self.rest)
        self.grad = torch.empty_like(output).copy_(torch.randn(output.shape, generator=g))

    def results(self, convert=lambda t: t):
        x, w, grad = convert(self.x), convert(self.w), convert(self.grad)
        b = None if self.b is None else convert(self.b)
        y = aten.convolution(x, w, b, *self.rest)
        sizes = None if b is None else [len(b)]
        gradients = aten.convolution_backward(grad, x, w, sizes, *self.rest, [True, True, b is not None])
        return [t for t in (y, *gradients) if t is not None]

    def counts(self):
        """How many different results there are of output and gradients, over the thread counts."""
        found = []
        for threads in THREADS:
            torch.set_num_threads(threads)
            results = self.results()
            assert torch.get_num_threads() == threads
            assert [t.stride() for t in results] == [t.stride() for t in (found or [results])[0]]
            found.append(results)
        return [
            sum(not any(torch.equal(a, b) for b in same[:i]) for i, a in enumerate(same))
            for same in zip(*found)
        ]


KNOWN = Case(8, 64, 64, 28)


def test_without_the_replacement_the_bits_of_a_known_convolution_differ():
    """Some of torch's own gradients have several results over thread counts; which, depends on the CPU."""
    known = (KNOWN, Case(1, 64, 64, 28), Case(3, 16, 32, 33), Case(32, 3, 64, 40))
    assert any(max(case.counts()) > 1 for case in known)


def test_with_the_replacement_they_do_not():
    """Output and gradients of that convolution have one result, also through autograd."""
    with replaced(convolution):
        assert set(KNOWN.counts()) == {1}
        found = []
        for threads in THREADS:
            torch.set_num_threads(threads)
            layer = torch.nn.Conv2d(64, 64, 3, padding=1)
            layer.load_state_dict({"weight": KNOWN.w, "bias": KNOWN.b})
            layer(KNOWN.x).backward(KNOWN.grad)
            found.append(layer.weight.grad)
    assert all(torch.equal(found[0], other) for other in found)


@st.composite
def cases(draw, dtypes=(torch.float32, torch.bfloat16, torch.float64)):
    groups = draw(st.sampled_from((1, 1, 1, 2, 4, 16)))
    kernel = draw(st.sampled_from((1, 3, 5)))
    dims = draw(st.sampled_from((1, 2, 2, 3)))
    side = draw(st.sampled_from({1: (17, 600), 2: (7, 28, 41), 3: (6, 10)}[dims]))
    return Case(
        n=draw(st.sampled_from((1, 2, 3, 8, 17))),
        c=groups * draw(st.sampled_from((1, 3, 16) if groups > 4 else (1, 3, 16, 64))) ,
        o=groups * draw(st.sampled_from((1, 2, 8) if groups > 4 else (1, 10, 33, 64))),
        side=side,
        kernel=min(kernel, 3) if dims == 3 else kernel,
        stride=draw(st.sampled_from((1, 2))),
        padding=draw(st.sampled_from((0, 1))),
        dilation=draw(st.sampled_from((1, 2))) if side > 9 else 1,
        groups=groups,
        transposed=draw(st.booleans()),
        bias=draw(st.booleans()),
        last=draw(st.booleans()),
        dtype=draw(st.sampled_from(dtypes)),
        dims=dims,
    )  # fmt: skip


@settings(max_examples=40)
@given(case=cases())
def test_the_bits_do_not_depend_on_the_thread_count(case):
    """Of every kind of convolution, output and gradients have the bits and the strides of one thread at any count."""
    with replaced(convolution):
        assert set(case.counts()) == {1}


@settings(max_examples=25)
@given(case=cases((torch.float32, torch.bfloat16)))
def test_results_are_as_exact_as_torch_s(case):
    """Against float64, our errors are at most 1.5 times those of torch at one thread (rounding varies with the order)."""
    exact = case.results(lambda t: t.double())
    torch.set_num_threads(1)
    theirs = case.results()
    with replaced(convolution):
        ours = case.results()
    for a, b, e in zip(ours, theirs, exact, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        smallest = torch.finfo(a.dtype).eps / 4
        assert (a - e).norm() <= 1.5 * (b - e).norm().nan_to_num(torch.inf) + smallest * e.norm()


@pytest.mark.parametrize(
    "mask", [[True, False, False], [False, True, False], [False, False, True], [False, True, True]]
)
def test_only_the_gradients_asked_for(mask):
    """Any mask gives the gradients that the full mask gives, and None for the others (a bias alone is summed apart)."""
    with replaced(convolution):
        full = aten.convolution_backward(KNOWN.grad, KNOWN.x, KNOWN.w, [64], *KNOWN.rest, [True] * 3)
        some = aten.convolution_backward(KNOWN.grad, KNOWN.x, KNOWN.w, [64], *KNOWN.rest, mask)
    for wanted, a, b in zip(mask, some, full, strict=True):
        assert a is None or torch.equal(a, b) or (mask == [False, False, True] and torch.allclose(a, b, 1e-4))
        assert (a is not None) == wanted


def test_without_onednn():
    """Torch's own convolutions, in use where oneDNN is switched off, are held as well."""
    with torch.backends.mkldnn.flags(enabled=False), replaced(convolution):
        assert set(Case(17, 16, 33, 28).counts()) == {1}
        assert set(Case(8, 16, 32, 14, transposed=True).counts()) == {1}


def _dilated(seed):
    """The weight gradient of a dilated bfloat16 convolution, after other memory was written and freed."""
    case = Case(4, 32, 32, 40, dilation=2, padding=0, groups=32, bias=False, last=True, dtype=torch.bfloat16)
    junk = [torch.full((50_000 * seed,), float(seed)) for _ in range(5)]
    del junk
    return (
        case.results()[2].contiguous().view(torch.int16),
        case.results(lambda t: t.double())[2],
        case.results()[2],
    )


def test_a_weight_gradient_that_reads_unwritten_memory_does_not():
    """oneDNN's dilated bfloat16 weight gradient in channels_last is garbage on some machines; ours is right."""
    with replaced(convolution):
        found = [_dilated(seed) for seed in (1, 2, 3)]
    assert all(torch.equal(found[0][0], bits) for bits, _, _ in found)
    _, exact, ours = found[0]
    assert (ours - exact).norm() < 4e-3 * exact.norm()


def test_wrong_calls_raise_torch_s_errors():
    """What torch refuses is refused in torch's own words."""
    x, w = torch.ones(1, 3, 8, 8), torch.ones(4, 2, 3, 3)
    for args in ((x, w), (x, torch.ones(4, 3, 9, 9)), (x, torch.ones(4, 3, 3))):
        with pytest.raises(RuntimeError) as theirs:
            torch.nn.functional.conv2d(*args)
        with replaced(convolution), pytest.raises(RuntimeError) as ours:
            torch.nn.functional.conv2d(*args)
        assert str(ours.value) == str(theirs.value)


def test_empty_batches():
    """A batch of no samples has an empty output and gradients of zeros, as in torch."""
    case = Case(0, 3, 4, 8)
    theirs = case.results()
    with replaced(convolution):
        ours = case.results()
    assert all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_parts_are_whole_units_and_few():
    """The parts of an axis follow each other without a gap; small work is one part, large work at least eight."""
    shapes = ((32, 64, 56, 56), (64, 64, 3, 3), (32, 64, 56, 56))
    for result in (INPUT, WEIGHT, OUTPUT):
        axis, bounds = cut(Sizes(shapes, 1, False, 4), result)
        assert bounds[0] == 0 and bounds[-1] == axis.size and sorted(set(bounds)) == list(bounds)
        assert len(bounds) > 8
        small = ((1, 8, 8, 8), (8, 8, 3, 3), (1, 8, 8, 8))
        assert len(cut(Sizes(small, 1, False, 4), result).bounds) == 2


def test_no_sum_of_parts_in_a_short_type():
    """The weight gradient of bfloat16 is never summed over parts of the batch: that would round twice."""
    shapes = ((64, 64, 56, 56), (64, 64, 3, 3), (64, 64, 56, 56))
    assert cut(Sizes(shapes, 1, False, 4), WEIGHT).axis.dims[WEIGHT] is None
    assert cut(Sizes(shapes, 1, False, 2), WEIGHT).axis.dims[WEIGHT] == 0
