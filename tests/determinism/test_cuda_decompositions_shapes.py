"""The CUDA formulations over shapes that Hypothesis chooses, against torch's CPU kernels in float64 and float32."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from formulation_check import disable_determinism
from samebits.determinism._cuda_decompositions import counts, grids, losses, pools, resize, scans
from samebits.determinism._kernels.indexed_writes import max_unpool2d, put_

F, aten = torch.nn.functional, torch.ops.aten
TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-5}
few = settings(max_examples=40, deadline=None, derandomize=True)
floats = st.sampled_from([torch.float64, torch.float32])
seeds = st.integers(0, 2**16)


def draw(shape, dtype, seed):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def ints(high, shape, seed):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def assert_close(got, expected):
    assert got.shape == expected.shape and got.dtype == expected.dtype
    finite = expected.isfinite()
    assert torch.equal(got.isfinite(), finite) and torch.equal(got.isnan(), expected.isnan())
    if finite.any():
        scale = expected[finite].abs().max().clamp(min=1)
        assert (got - expected)[finite].abs().max() <= TOLERANCE[got.dtype] * scale


MODES = {
    name: (int(name[name.index("d_") - 1]), getattr(aten, name), partial(resize.upsample_backward, pairs))
    for name, pairs in resize.PAIRS.items()
    if hasattr(aten, name)  # torch 2.11 has no lanczos
}


@pytest.mark.slow
@given(st.sampled_from(sorted(MODES)), st.data(), floats, seeds)
@settings(few, max_examples=200)
def test_resizes(mode, data, dtype, seed):
    """Gradients of every resize agree: sizes up and down, scales given or not, aligned corners, channels_last, no batch."""
    dims, torch_op, ours = MODES[mode]
    size = data.draw(st.lists(st.integers(1, 9), min_size=dims, max_size=dims))
    scales = data.draw(st.lists(st.none() | st.floats(0.3, 3.3), min_size=dims, max_size=dims))
    sizes_out = [
        data.draw(st.integers(1, 12)) if scale is None else max(1, int(n * scale))
        for n, scale in zip(size, scales, strict=True)
    ]
    batch, aligned = data.draw(st.integers(0, 2)), data.draw(st.booleans())
    if "_aa_" in mode:
        batch = max(batch, 1)  # torch's own backward divides by the number of planes
    grad = draw((batch, 3, *sizes_out), dtype, seed)
    if dims == 2 and data.draw(st.booleans()):
        grad = grad.contiguous(memory_format=torch.channels_last)
    args = (grad, sizes_out, [batch, 3, *size], aligned, *scales)
    same = "_aa_" in mode and sizes_out == size  # torch copies forward, and on CUDA backward, too
    assert_close(ours(*args), grad if same else torch_op(*args))


@pytest.mark.parametrize("mode", sorted(mode for mode in MODES if MODES[mode][0] == 2))
def test_a_scale_counts_along_a_dimension_that_keeps_its_size(mode):
    """From 3 to 3 elements by a scale of 1.25 is no copy, unless torch's kernel makes it one."""
    _, torch_op, ours = MODES[mode]
    args = (draw((1, 2, 4, 3), torch.float64, 0), [4, 3], [1, 2, 2, 3], False, None, 1.25)
    assert_close(ours(*args), torch_op(*args))


def test_an_infinite_gradient_stays_where_it_belongs():
    """Inputs that went into no output have gradient 0, also where a gradient is infinite; torch agrees."""
    grad = torch.full((1, 1, 2, 2), torch.inf, dtype=torch.float64)
    args = (grad, [2, 2], [1, 1, 12, 12], False, None, None)
    got = MODES["upsample_bilinear2d_backward"][2](*args)
    assert torch.equal(got == 0, aten.upsample_bilinear2d_backward(*args) == 0)
    assert (got == 0).sum() == 144 - 16 and got.isinf().sum() == 16


@pytest.mark.parametrize("shape, out", [((2, 3, 8, 8), (2, 3, 4, 4)), ((2, 3, 6, 6, 6), (2, 3, 4, 4, 4))])
def test_channels_stay_last(shape, out):
    """Gradients of average pools and resizes keep a memory format with channels last; negative control: rows stay rows."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}[len(shape)]
    grad, x = torch.randn(out), torch.randn(shape)
    pool = partial(pools.adaptive_avg_pool_backward, len(shape) - 2)
    last, rows = pool(grad.contiguous(memory_format=layout), x), pool(grad, x)
    assert last.is_contiguous(memory_format=layout) and torch.equal(last, rows) and rows.is_contiguous()


@given(st.data(), floats, seeds)
@few
def test_average_pools(data, dtype, seed):
    """Gradients of `avg_pool3d` agree over kernels, strides, paddings, ceil mode, the divisor's rules and no batch."""
    kernel = data.draw(st.lists(st.integers(1, 3), min_size=3, max_size=3))
    stride = data.draw(st.just([]) | st.lists(st.integers(1, 4), min_size=3, max_size=3))
    padding = [data.draw(st.integers(0, k // 2)) for k in kernel]
    rules = data.draw(st.booleans()), data.draw(st.booleans()), data.draw(st.none() | st.integers(1, 9))
    lead = data.draw(st.sampled_from([(2,), (1, 2), (0, 2)]))
    x = draw((*lead, *data.draw(st.lists(st.integers(3, 7), min_size=3, max_size=3))), dtype, seed)
    y = aten.avg_pool3d(x, kernel, stride, padding, *rules)
    args = (draw(y.shape, dtype, seed + 1), x, kernel, stride, padding, *rules)
    assert_close(pools.avg_pool3d_backward(*args), aten.avg_pool3d_backward(*args))


@given(st.data(), st.sampled_from([2, 3]), floats, seeds)
@few
def test_adaptive_pools(data, dims, dtype, seed):
    """Gradients of adaptive average and maximum pools agree, where windows overlap and where outputs outnumber inputs."""
    side = st.lists(st.integers(1, 7), min_size=dims, max_size=dims)
    lead = data.draw(st.sampled_from([(2,), (1, 2)]))
    x, grad = draw((*lead, *data.draw(side)), dtype, seed), draw((*lead, *data.draw(side)), dtype, seed + 1)
    average = pools.adaptive_avg_pool_backward(dims, grad, x)
    assert_close(average, getattr(aten, f"_adaptive_avg_pool{dims}d_backward")(grad, x))
    indices = getattr(F, f"adaptive_max_pool{dims}d")(x, grad.shape[-dims:], return_indices=True)[1]
    maximum = pools.adaptive_max_pool_backward(dims, grad, x, indices)
    assert_close(maximum, getattr(aten, f"adaptive_max_pool{dims}d_backward")(grad, x, indices))


@given(st.data(), st.sampled_from([1, 2, 3]), floats, seeds)
@few
def test_reflection_pads(data, dims, dtype, seed):
    """Gradients of reflection padding agree, cropping (negative padding) and a missing batch included."""
    size = data.draw(st.lists(st.integers(4, 6), min_size=dims, max_size=dims))
    padding = data.draw(st.lists(st.integers(-1, 3), min_size=2 * dims, max_size=2 * dims))
    if dims == 3:
        padding = [max(0, p) for p in padding]
    x = draw((*data.draw(st.sampled_from([(2,), (1, 2)])), *size), dtype, seed)
    y = F.pad(x, padding, mode="reflect")
    args = (draw(y.shape, dtype, seed + 1), x, padding)
    theirs = getattr(aten, f"reflection_pad{dims}d_backward")
    assert_close(pools.reflection_pad_backward(*args), theirs(*args))


@given(
    st.sampled_from([(2, 0), (2, 1), (2, 2), (3, 0), (3, 1)]),
    st.integers(0, 2),
    st.booleans(),
    st.data(),
    floats,
    seeds,
)
@settings(few, max_examples=120)
def test_grid_samplers(kind, padding, aligned, data, dtype, seed):
    """Both gradients of `grid_sample` agree: 2-d and 3-d, every mode, padding and corner rule, points far outside."""
    (dims, mode), side = kind, st.lists(st.integers(1, 5), min_size=kind[0], max_size=kind[0])
    batch = data.draw(st.integers(1, 2))
    x = draw((batch, 2, *data.draw(side)), dtype, seed)
    points = data.draw(side)
    grid = draw((batch, *points, dims), dtype, seed + 1) * data.draw(st.sampled_from([0.5, 1.5, 4.0]))
    args = (draw((batch, 2, *points), dtype, seed + 2), x, grid, mode, padding, aligned, [True, True])
    ours, theirs = grids.grid_sampler_backward, getattr(aten, f"grid_sampler_{dims}d_backward")
    for got, expected in zip(ours(*args), theirs(*args), strict=True):
        assert_close(got, expected)
    assert ours(*args[:-1], [False, True])[0] is None


@given(st.integers(1, 400), st.integers(0, 2), floats, seeds)
@few
def test_running_sums(length, dim, dtype, seed):
    """Float cumulative sums agree over lengths around the block size, along any dimension; NaN and infinity stay behind."""
    x = draw([length if d == dim else 2 for d in range(3)], dtype, seed)
    assert_close(scans.cumsum(x, dim), aten.cumsum(x, dim))
    out = torch.empty(0, dtype=torch.float64)
    assert_close(scans.cumsum_out(x.long(), dim, out=out), x.long().cumsum(dim).double())
    x.view(-1)[seed % x.numel()] = torch.inf
    assert_close(scans.cumsum(x, dim), aten.cumsum(x, dim))


@given(st.data(), floats, seeds)
@few
def test_products_of_equal_indices(data, dtype, seed):
    """`scatter_reduce` with prod agrees over shapes where the index is smaller than both tensors, and on integers."""
    dim, size = data.draw(st.integers(-2, 1)), [data.draw(st.integers(1, 9)) for _ in range(2)]
    index_shape = [data.draw(st.integers(0, n)) for n in size]
    x, include = draw(size, dtype, seed), data.draw(st.booleans())
    index = ints(size[dim], index_shape, seed)
    source = draw(size, dtype, seed + 1)
    for self, src in ((x, source), ((x * 9).long(), (source * 9).long())):
        args, kwargs = (self, dim, index, src, "prod"), {"include_self": include}
        got, expected = scans.scatter_reduce(*args, **kwargs), aten.scatter_reduce(*args, **kwargs)
        assert (
            torch.equal(got, expected) if self.dtype == torch.int64 else assert_close(got, expected) is None
        )


@given(st.data(), seeds)
@few
def test_writes_with_equal_indices(data, seed):
    """`put_`: the last write in index order wins, for any strides of the three tensors and negative indices."""
    rows, columns = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 6))
    size = rows * columns
    index = ints(2 * size, (data.draw(st.integers(0, 9)), 3), seed) - size
    source = draw(index.shape, torch.float64, seed)
    if data.draw(st.booleans()):
        index, source = index.t().contiguous().t(), source.t().contiguous().t()
    self = (
        torch.zeros(columns, rows).double().t()
        if data.draw(st.booleans())
        else torch.zeros(rows, columns).double()
    )
    expected = torch.zeros(size).double()
    for i, s in zip(index.reshape(-1).tolist(), source.reshape(-1).tolist(), strict=True):
        expected[i] = s
    assert put_(self, index, source) is self
    assert torch.equal(self, expected.view(rows, columns))


@given(st.booleans(), st.integers(0, 3), seeds)
@few
def test_unpooling_with_equal_indices(last, batch, seed):
    """`max_unpool2d`: the last write in row-major order of each plane wins, in both memory formats."""
    layout = torch.channels_last if last else torch.contiguous_format
    x = draw((batch, 3, 3, 4), torch.float32, seed).contiguous(memory_format=layout)
    indices = ints(10, x.shape, seed).contiguous(memory_format=layout)
    expected = torch.zeros(batch, 3, 10)
    for n, c, h, w in torch.ones(x.shape).nonzero().tolist():
        expected[n, c, indices[n, c, h, w]] = x[n, c, h, w]
    got = max_unpool2d(x, indices, [2, 5])
    assert torch.equal(got, expected.view(batch, 3, 2, 5))
    with disable_determinism():
        assert got.stride() == aten.max_unpool2d(x, indices, [2, 5]).stride()


@given(st.data(), floats, seeds)
@few
def test_histograms(data, dtype, seed):
    """`histc` agrees with torch for given and data ranges; NaN and what lies outside is not counted."""
    x = draw((data.draw(st.integers(1, 40)),), dtype, seed)
    low = data.draw(st.sampled_from([(0, 0), (-1, 1), (0.25, 0.5)]))
    bins = data.draw(st.integers(1, 9))
    assert torch.equal(counts.histc(x, bins, *low), aten.histc(x, bins, *low))
    if low != (0, 0):
        x[0] = torch.nan
        assert counts.histc(x, bins, *low).sum() == ((x >= low[0]) & (x <= low[1])).sum()


@given(
    st.integers(0, 20), st.integers(0, 9), st.sampled_from([torch.float32, torch.float64, torch.int64]), seeds
)
@few
def test_weighted_counts(length, minlength, dtype, seed):
    """Weighted `bincount` agrees with torch in value and dtype, for every dtype of weights and for no input."""
    x, weights = ints(7, (length,), seed), (draw((length,), torch.float64, seed) * 9).to(dtype)
    got, expected = counts.bincount(x, weights, minlength), aten.bincount(x, weights, minlength)
    assert got.dtype == expected.dtype and torch.allclose(got, expected, rtol=1e-5)


@given(st.data(), st.booleans(), seeds)
@few
def test_ranks(data, keep, seed):
    """Medians and kth values equal torch's; the index is where a stable sort has the value, NaN as torch orders it."""
    dim, shape = data.draw(st.integers(-2, 1)), data.draw(st.tuples(st.integers(1, 7), st.integers(1, 7)))
    x = (draw(shape, torch.float32, seed) * 2).round()
    if data.draw(st.booleans()):
        x[ints(2, x.shape, seed).bool()] = torch.nan
    k = data.draw(st.integers(1, shape[dim]))
    for ours, theirs, more in (
        (counts.median, torch.median, ()),
        (counts.nanmedian, torch.nanmedian, ()),
        (counts.kthvalue, lambda x, k, d, keep: torch.kthvalue(x, k, d, keep), (k,)),
    ):
        outs = x.new_empty(0), torch.empty(0, dtype=torch.int64)
        values, indices = ours(x, *more, dim, keep, values=outs[0], indices=outs[1])
        expected = theirs(x, *more, dim, keep).values
        assert torch.equal(values.nan_to_num(nan=99.0), expected.nan_to_num(nan=99.0))
        places = indices if keep else indices.unsqueeze(dim)
        found = x.gather(dim, places).nan_to_num(nan=99.0)
        assert torch.equal(found if keep else found.squeeze(dim), values.nan_to_num(nan=99.0))


@given(st.data(), st.sampled_from([1, 2]), st.booleans(), floats, seeds)
@few
def test_nll_loss2d(data, reduction, weighted, dtype, seed):
    """Loss and total weight agree with torch; ignored places do not count, all ignored gives NaN, no batch too."""
    n, c, h = data.draw(st.integers(0, 2)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    x, target = draw((n, c, h, 3), dtype, seed).log_softmax(1), ints(c, (n, h, 3), seed)
    weight = draw((c,), dtype, seed).abs() if weighted else None
    args = (x, target, weight, reduction, data.draw(st.sampled_from([-100, 0])))
    for got, expected in zip(losses.nll_loss2d_forward(*args), aten.nll_loss2d_forward(*args), strict=True):
        assert_close(got, expected)


@given(st.data(), st.booleans(), st.booleans(), floats, seeds)
@settings(few, max_examples=80)
def test_ctc_loss(data, flat, zero_infinity, dtype, seed):
    """Gradients agree over lengths, repeated labels, both layouts of the targets, impossible targets and empty ones."""
    n, times = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    inputs = data.draw(st.lists(st.integers(1, times), min_size=n, max_size=n))
    sizes = data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    log_probs = draw((times, n, 4), dtype, seed).log_softmax(2)
    blank = data.draw(st.integers(0, 3))
    targets = (ints(3, (n, max(1, max(sizes))), seed) + blank + 1) % 4
    if flat:
        targets = torch.cat([row[:size] for row, size in zip(targets, sizes, strict=True)])
    loss, alpha = aten._ctc_loss(log_probs, targets, inputs, sizes, blank, zero_infinity)
    args = (draw((n,), dtype, seed + 1), log_probs, targets, inputs, sizes, loss, alpha, blank, zero_infinity)
    assert_close(losses.ctc_loss_backward(*args), aten._ctc_loss_backward(*args))
