"""stochastic_round on the CPU, against its definition."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import samebits.random as sr
from rounding_reference import CODES, DTYPES, chances, codes, expected, inputs, magnitudes, numbers_of
from samebits._native import kernel
from samebits._native.float_bits import from_bits_32, to_bfloat16
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.rounding import stochastic_round
from samebits.rounding._cpu.number_formats import FORMATS, bfloat16_by, rounding_to

BF16, E4M3, E5M2 = torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2
KEY = sr.key(7)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@each_dtype
def test_number_i_of_the_stream_decides_element_i(dtype):
    """Every element is the neighbour that the exact fraction and its number of the key's stream choose; any size of x."""
    x = inputs(dtype)
    numbers = numbers_of(KEY, x.numel(), dtype)
    assert np.array_equal(codes(stochastic_round(x, dtype, KEY)), expected(x.numpy(), dtype, numbers))
    others = numbers_of(sr.key(8), x.numel(), dtype)  # control: numbers of another key
    assert not np.array_equal(codes(stochastic_round(x, dtype, KEY)), expected(x.numpy(), dtype, others))


@kernel("void(uint16[::1], int64[:, ::1])")
def counted(uppers, counts):
    """counts[u, low]: for how many of the 2**16 random halves the bfloat16 is the upper neighbour."""
    for u in range(uppers.size):
        for low in range(65536):
            x = from_bits_32(np.int32((np.int64(uppers[u]) << 16) | low))
            up = 0
            for half in range(65536):
                up += np.int64(bfloat16_by(x, np.uint16(half))) - np.int64(uppers[u])
            counts[u, low] = up


@kernel("void(int64, int64[::1])")
def counted_to_nearest(upper, counts):
    for low in range(65536):
        x = from_bits_32(np.int32((np.int64(upper) << 16) | low))
        counts[low] = 65536 * (np.int64(to_bfloat16(x)) - np.int64(upper))


@pytest.mark.slow
def test_bfloat16_is_unbiased_for_every_low_half():
    """For each of the 2**16 low halves of a float32, exactly so many of the 2**16 random halves round up: normal,
    subnormal and negative numbers, and the step to infinity."""
    uppers = np.array([0x3F80, 0x0000, 0xC2F7, 0x7F7F], np.uint16)
    counts = np.zeros((len(uppers), 65536), np.int64)
    counted(uppers, counts)
    assert (counts == np.arange(65536)).all()
    counted_to_nearest(0x3F80, counts[0])  # control: to nearest
    assert (counts[0] != np.arange(65536)).sum() > 65000


def evaluate(dtype):
    """The rounding of a dtype as a function of x and words, both arrays."""
    form = FORMATS[dtype]
    by = rounding_to(form)

    def each(x, words, out):
        for i in range(x.size):
            out[i] = by(x[i], words[i])

    each.__qualname__ = f"each_{form.name}"
    compiled = kernel(f"void(float32[::1], uint32[::1], uint{8 * form.size}[::1])")(each)

    def run(x, words):
        out = np.zeros(x.size, {1: np.uint8, 2: np.uint16}[form.size])
        compiled(x, words.astype(np.uint32), out)
        return out.astype(np.int64)

    return run


@pytest.mark.parametrize("dtype", [torch.float16, E4M3, E5M2], ids=str)
def test_the_chance_is_the_fraction(dtype):
    """A word rounds up from 2**32 - fraction x 2**32 on and not below, so that the mean over all words is x exactly."""
    x = inputs(dtype)
    x = x[x.isfinite() & (x.abs() <= torch.finfo(dtype).max)].numpy()
    run, (down, chance) = evaluate(dtype), chances(x, dtype)
    magnitude = 2 ** (8 * FORMATS[dtype].size - 1) - 1
    some = chance > 0
    assert np.array_equal(run(x, 2**32 - 1 - chance) & magnitude, down)
    assert np.array_equal(run(x[some], 2**32 - chance[some]) & magnitude, down[some] + 1)
    table = magnitudes(dtype)
    mean = table[down] + (table[down + 1] - table[down]) * (chance / 2.0**32)
    exact = np.abs(x) >= 2.0 ** (FORMATS[dtype].least - FORMATS[dtype].digits - 9)
    assert np.array_equal(mean[exact], np.abs(x[exact]).astype(np.float64)) and exact.mean() > 0.5
    assert (np.abs(mean - np.abs(x)) < table[1] * 2.0**-32).all()


@each_dtype
def test_what_the_dtype_has_is_kept(dtype):
    """Every number of the dtype is kept under any random number: zeros with their signs, subnormal ones, infinities."""
    every = torch.arange(2 ** (8 * dtype.itemsize)).to(CODES[dtype.itemsize]).view(dtype)
    every = every[~every.float().isnan()]
    for seed in range(4):
        assert np.array_equal(codes(stochastic_round(every.float(), dtype, sr.key(seed))), codes(every))
    between = every.float() * (1 + 2.0**-9)  # control: numbers next to them are not
    assert not np.array_equal(codes(stochastic_round(between, dtype, KEY)), codes(every))


@each_dtype
def test_nan_stays_nan(dtype):
    """A NaN stays one under any random number, also where all of its payload is in the bits that fall out; its sign is kept."""
    payloads = torch.tensor([1, 0x1FFF, 0xFFFF, 0x400000, 0x7FFFFF, 0x3FFFFF] * 512, dtype=torch.int32)
    x = torch.cat([payloads | 0x7F800000, payloads | -0x800000]).view(torch.float32)
    y = stochastic_round(x, dtype, KEY)
    assert y.float().isnan().all()
    assert np.array_equal(codes(y) >> (8 * dtype.itemsize - 1), np.signbit(x.numpy()))


def test_nan_payload():
    """A NaN is made quiet and keeps the upper bits of its payload."""
    x = torch.tensor([0x7FA50000, 0x7F810001], dtype=torch.int32).view(torch.float32)
    assert codes(stochastic_round(x, BF16, KEY)).tolist() == [0x7FE5, 0x7FC1]
    assert codes(stochastic_round(x, torch.float16, KEY)).tolist() == [0x7F28, 0x7E08]
    assert codes(stochastic_round(x, E5M2, KEY)).tolist() == [0x7F, 0x7E]
    assert codes(stochastic_round(x, E4M3, KEY)).tolist() == [0x7F, 0x7F]


@pytest.mark.parametrize("dtype", [BF16, torch.float16, E5M2], ids=str)
def test_beyond_the_largest_number(dtype):
    """Past the largest number the next step counts as ever: a quarter of it is infinite in a quarter of all cases."""
    *_, largest, after = magnitudes(dtype)
    x = torch.full((4096,), largest + (after - largest) / 4, dtype=torch.float64).float()
    y = stochastic_round(x, dtype, KEY).double()
    beyond = y.isposinf()
    assert (y[~beyond] == largest).all() and 850 < beyond.sum() < 1200
    # a float64: for bfloat16 it is infinite, too
    far = torch.tensor([torch.inf, -torch.inf, after], dtype=torch.float32)
    assert np.array_equal(codes(stochastic_round(far, dtype, KEY)), codes(far.to(dtype)))


def test_beyond_the_largest_number_without_infinity():
    """float8_e4m3fn has no infinity: all beyond 448 becomes 448, infinities too, and no NaN."""
    x = torch.tensor([448.0, 449.0, 479.0, 480.0, 1e30, torch.inf] * 200)
    y = stochastic_round(torch.cat([x, -x]), E4M3, KEY).float()
    assert (y == torch.cat([torch.full_like(x, 448), torch.full_like(x, -448)])).all()


def test_layouts():
    """Elements are counted in row-major order, whatever the strides of input and output; the layout of x is kept."""
    x = torch.randn(6, 5, 4)
    y = stochastic_round(x, BF16, KEY)
    for moved in (x.permute(2, 0, 1).contiguous().permute(1, 2, 0), torch.stack([x, x], -1)[..., 1]):
        z = stochastic_round(moved, BF16, KEY)
        assert torch.equal(z, y)
        out = torch.zeros(5, 6, 4, dtype=BF16).transpose(0, 1)
        assert stochastic_round(moved, BF16, KEY, out=out) is out and torch.equal(out, y)
    assert z.stride() == torch.empty_like(moved).stride()
    assert stochastic_round(torch.empty(0, 3), E4M3, KEY).shape == (0, 3)
    assert torch.equal(stochastic_round(x[0, 0, 0], BF16, KEY), y[0, 0, 0])
    assert torch.equal(
        stochastic_round(x.bfloat16(), E5M2, KEY), stochastic_round(x.bfloat16().float(), E5M2, KEY)
    )


@given(st.integers(1, 300_000), st.integers(1, 5), st.sampled_from([BF16, E4M3]))
def test_bits_depend_on_the_place_alone(count, threads, dtype):
    """A longer tensor begins with the bits of a shorter one, with any number of threads."""
    torch.set_num_threads(threads)
    y = stochastic_round(LONG[:count], dtype, KEY)
    assert np.array_equal(codes(y), codes(WHOLE[dtype][:count]))


LONG = torch.randn(300_000)
WHOLE = {dtype: stochastic_round(LONG, dtype, KEY) for dtype in (BF16, E4M3)}


def test_large_tensors():
    """Where chunks are larger, the bits are those of the integer formula all the same."""
    x = torch.randn(2**23 + 1000, generator=torch.Generator().manual_seed(1))
    halves = sr.bits(KEY, x.numel(), dtype=torch.uint16).to(torch.int32)
    formula = ((x.view(torch.int32) + halves) >> 16).to(torch.int16)
    assert torch.equal(stochastic_round(x, BF16, KEY).view(torch.int16), formula)


def test_gradient_is_that_of_the_cast():
    """Backward hands the gradient on in x's dtype, as x.to(dtype) does; so does a second derivative, which is none."""
    x = torch.randn(64, requires_grad=True)
    weights = torch.randn(64).bfloat16()
    (ours,) = torch.autograd.grad(stochastic_round(x, BF16, KEY), x, weights)
    (theirs,) = torch.autograd.grad(x.to(BF16), x, weights)
    assert ours.dtype is torch.float32 and torch.equal(ours, theirs)
    with torch.no_grad():
        assert not stochastic_round(x, BF16, KEY).requires_grad


def test_in_graphs():
    """It is one op in a captured graph and in fake mode, of the same bits."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(40)
    graph = make_fx(lambda x, key: stochastic_round(x, BF16, key) * 2, tracing_mode="fake")(x, KEY)
    assert [n.target for n in graph.graph.nodes if "stochastic_round" in str(n.target)] == [
        torch.ops.samebits.stochastic_round.default
    ]
    assert torch.equal(graph(x, KEY), stochastic_round(x, BF16, KEY) * 2)
    compiled = torch.compile(lambda x, key: stochastic_round(x, BF16, key), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, KEY), stochastic_round(x, BF16, KEY))
    torch.library.opcheck(
        torch.ops.samebits.stochastic_round.default, (x.clone().requires_grad_(), BF16, KEY)
    )


@pytest.mark.parametrize(
    "arguments, says",
    [
        ((torch.ones(3, dtype=torch.float64), BF16, KEY), "x.float"),
        ((torch.ones(3, dtype=torch.int32), BF16, KEY), "float32"),
        ((torch.ones(3), torch.float64, KEY), "bfloat16, float16"),
        ((torch.ones(3), BF16, sr.split(KEY, 3)), "one key"),
        ((torch.ones(3), BF16, 7), "key tensor"),
        ((torch.ones(3, device="meta"), BF16, KEY), "on one device"),
    ],
)
def test_refusals(arguments, says):
    """Another dtype, device or key is refused, and the message says what to give."""
    with pytest.raises(InvalidArgumentError, match=says):
        stochastic_round(*arguments)


def test_refusals_of_out():
    """out= of another dtype or shape, in the memory of x, or where a gradient is asked for is refused and not written."""
    x = torch.randn(4, requires_grad=True)
    out = torch.zeros(4, dtype=BF16)
    for given_x, given_out in [
        (x.detach(), out.half()),
        (x.detach(), out[:3]),
        (x, out),
        (x.detach(), x.detach().view(BF16)[:4]),
    ]:
        with pytest.raises(InvalidArgumentError, match="out"):
            stochastic_round(given_x, BF16, KEY, out=given_out)
    assert not out.any()
    with torch.no_grad():
        assert stochastic_round(x, BF16, KEY, out=out).any()


def test_other_devices():
    """A device without kernels is refused; where nothing is computed, as on the meta device, the shape is known."""
    from samebits.rounding._stochastic_round import kernels

    key = torch.empty(2, dtype=torch.uint64, device="meta")
    with pytest.raises(UnimplementedError, match="key.cpu"):
        kernels("stochastic_round", key)
    y = stochastic_round(torch.empty(3, device="meta"), BF16, key)
    assert y.is_meta and y.dtype is BF16 and y.shape == (3,)


def test_slices_of_a_vmap_do_not_share_their_numbers_unless_asked():
    """One key for all slices is refused; with a key each, or randomness="same", a slice is rounded as if alone."""
    x, keys = torch.rand(3, 5), sr.split(KEY, 3)
    alone = torch.stack([stochastic_round(x[i], BF16, keys[i]) for i in range(3)])
    mapped = torch.vmap(lambda x, key: stochastic_round(x, BF16, key), in_dims=(1, 0))
    assert torch.equal(mapped(x.t(), keys), alone)
    into = torch.vmap(lambda x, key, out: stochastic_round(x, BF16, key, out=out))
    assert torch.equal(into(x, keys, torch.empty(3, 5, dtype=BF16)), alone)
    for randomness in ("error", "different"):
        with pytest.raises(InvalidArgumentError, match=r'samebits.random.split\(key.*randomness="same"'):
            torch.vmap(lambda x: stochastic_round(x, BF16, KEY), randomness=randomness)(x)
    same = torch.vmap(lambda x: stochastic_round(x, BF16, KEY), randomness="same")(x)
    assert torch.equal(same, torch.stack([stochastic_round(row, BF16, KEY) for row in x]))
    with pytest.raises(InvalidArgumentError, match="torch.vmap"):
        stochastic_round(x, BF16, keys)


def test_a_tracer_sees_what_is_written_to_out():
    """In a graph, out= is the op and a copy: with other inputs the graph gives the bits of the direct call."""
    x, out = torch.rand(5), torch.zeros(5, dtype=BF16)
    graph = make_fx(lambda x, key, out: stochastic_round(x, BF16, key, out=out))(x, KEY, out)
    graph(x * 3, KEY, out)
    assert torch.equal(out, stochastic_round(x * 3, BF16, KEY))


def test_what_is_sparse_is_refused():
    """Its values are what can be rounded."""
    with pytest.raises(InvalidArgumentError, match="x.values"):
        stochastic_round(torch.eye(3).to_sparse(), BF16, KEY)


def test_torch_func_has_the_gradient_of_backward():
    """grad, vjp, vmap over grad and grad over vmap, jvp and second derivatives: those of `.backward()`, which is straight through."""
    keys = sr.split(KEY, 5)
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))

    def loss(x, key=KEY, dtype=BF16):
        return (stochastic_round(x * x, dtype, key).float() * torch.arange(4)).square().sum()

    def backward(x, *args, twice=False):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(loss(x, *args), x, create_graph=twice)
        if not twice:
            return first
        return torch.stack([torch.autograd.grad(one, x, retain_graph=True)[0] for one in first])

    for dtype in (BF16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2):
        assert torch.equal(torch.func.grad(loss)(x, KEY, dtype), backward(x, KEY, dtype))
    each = torch.stack([backward(x[i], keys[i]) for i in range(5)])
    assert torch.equal(torch.func.vmap(torch.func.grad(loss))(x, keys), each)
    assert torch.equal(torch.func.grad(lambda x: torch.func.vmap(loss)(x, keys).sum())(x), each)
    with pytest.raises(InvalidArgumentError, match="same numbers"):
        torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(x, KEY)
    rounded, pull = torch.func.vjp(lambda x: stochastic_round(x, BF16, KEY), x)
    assert torch.equal(rounded, stochastic_round(x, BF16, KEY))
    assert torch.equal(pull(rounded)[0], rounded.float())
    _, tangent = torch.func.jvp(lambda x: stochastic_round(x, BF16, KEY), (x,), (torch.full_like(x, 2.0),))
    assert torch.equal(tangent, torch.full_like(rounded, 2.0))
    with torch.autograd.forward_ad.dual_level():
        dual = stochastic_round(torch.autograd.forward_ad.make_dual(x, 3 * torch.ones_like(x)), BF16, KEY)
        assert torch.autograd.forward_ad.unpack_dual(dual).tangent.eq(3).all()
    second = backward(x[0], twice=True)
    assert second.count_nonzero() == 3  # control: a level that is lost gives zeros, or a term less
    reverse, forward = torch.func.jacrev, lambda f: torch.func.jacfwd(f, randomness="same")
    for outer in (reverse, forward):
        for inner in (reverse, forward):
            torch.testing.assert_close(outer(inner(loss))(x[0]), second, rtol=1e-2, atol=1e-2)
