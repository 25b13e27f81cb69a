"""Products with one definition on every machine: bit for bit the definition, whatever the layout, the threads, the batch, the CPU."""

import itertools
import math
import warnings
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_testing import close, laid_out, layouts, numbers, over_threads, printed_elsewhere
from product_reference import bits, fma32, fma64, fma_exact, reference
from samebits.arithmetic.product import product
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT
from samebits.determinism._ops import products
from samebits.errors import UnimplementedError

pytestmark = pytest.mark.slow

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def equal(x, y):
    assert x.dtype == y.dtype
    assert x.shape == y.shape
    return torch.equal(bits(x), bits(y))


sizes = st.one_of(
    st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 70)),
    st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(200, 1100)),
    st.tuples(st.integers(5, 30), st.integers(128, 150), st.integers(1, 40)),
    st.tuples(st.integers(1, 30), st.integers(1, 100), st.integers(250, 530)),
)


@pytest.mark.parametrize(
    "size", [(1, 40, 700), (3, 5, 20), (7, 1, 9), (33, 65, 20), (40, 30, 600), (2, 3, 5000)]
)
def test_a_product_in_a_tensor_that_is_there_has_the_same_bits(size):
    """Written between other numbers, in items and rows far apart, a product is that of a new tensor, and the numbers between stay."""
    m, n, k = size
    for dtype, threads, alpha in itertools.product((torch.float32, torch.float64), (1, 2), (1, 0.3)):
        torch.set_num_threads(threads)
        a, b = numbers((4, m, k), dtype, 1), numbers((4, k, n), dtype, 2)
        memory = torch.full((m, 5, n + 3), 7.0, dtype=dtype)
        place = memory.transpose(0, 1)[:4, :, :n]
        assert equal(product(a, b, alpha=alpha, out=place), product(a, b, alpha=alpha))
        assert (memory[:, 4] == 7).all()
        assert (memory[:, :, n:] == 7).all()


@settings(max_examples=25, derandomize=True, deadline=None)
@given(size=sizes, left=layouts, right=layouts, seed=st.integers(0, 99), threads=st.sampled_from((1, 2, 3)))
def test_a_product_is_the_chains_of_its_chunks(size, left, right, seed, threads):
    """Each output of a float32 product is the sum of its chunks' chains, in any layout, with bias, alpha and beta."""
    torch.set_num_threads(threads)
    m, n, k = size
    a, b = laid_out((m, k), torch.float32, seed, left), laid_out((k, n), torch.float32, seed + 1, right)
    bias = numbers((n,), torch.float32, seed + 2)
    assert equal(product(a, b), reference(a, b))
    assert equal(product(a, b, bias), reference(a, b, bias))
    assert equal(product(a, b, bias, 0.3, -1.7), reference(a, b, bias, 0.3, -1.7))
    assert equal(product(a, b[:, 0]), reference(a, b[:, :1])[:, 0])
    assert equal(product(a[:1], b[:, :1]), reference(a[:1], b[:, :1]))


@pytest.mark.parametrize("dtype", FLOATS)
@settings(max_examples=10, derandomize=True, deadline=None)
@given(
    size=st.one_of(
        st.tuples(st.integers(1, 7), st.integers(1, 9), st.sampled_from((1, 2, 33, 257, 511))),
        st.tuples(st.integers(5, 14), st.integers(128, 130), st.integers(1, 5)),
    ),
    left=layouts, right=layouts, seed=st.integers(0, 99),
)  # fmt: skip
def test_every_type_has_its_definition(dtype, size, left, right, seed):
    """float64 in its own arithmetic, float16 as float32, bfloat16 by pairs, each rounded once at the end."""
    m, n, k = size
    a, b = laid_out((m, k), dtype, seed, left), laid_out((k, n), dtype, seed + 1, right)
    added = numbers((m, 1), dtype, seed + 2)
    assert equal(product(a, b), reference(a, b))
    assert equal(product(a, b, added, 2.5, 0.1), reference(a, b, added.expand(m, n), 2.5, 0.1))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows", (2, 3, 13))
def test_the_last_steps_are_the_same_in_every_layout_of_self_and_of_the_result(dtype, rows):
    """At each end of a row within a vector, self dense, in steps, or one number for a row, and rows of the result apart."""
    a, b = numbers((rows, 6), dtype, 1), numbers((6, 70), dtype, 2)
    full = numbers((rows, 70), dtype, 3)
    laid = full, full.t().contiguous().t(), full[:, :1].expand(rows, 70), full[:1].expand(rows, 70)
    for columns, added in itertools.product((2, 7, 15, 16, 17, 31, 32, 33, 64, 70), laid):
        expected = reference(a, b[:, :columns], added[:, :columns], 0.3, -1.7)
        assert equal(product(a, b[:, :columns], added[:, :columns], 0.3, -1.7), expected)
        assert equal(product(b[:, :columns].t(), a.t(), added[:, :columns].t(), 0.3, -1.7), expected.t())
        place = torch.full((rows, 80), 7.0, dtype=dtype)
        product(a[None], b[None, :, :columns], added[:, :columns], 0.3, -1.7, out=place[None, :, :columns])
        assert equal(place[:, :columns], expected)
        assert (place[:, columns:] == 7).all()
        assert not equal(expected, reference(a, b[:, :columns], added[:, :columns], 0.3, -1.8))


@pytest.mark.parametrize("dtype", FLOATS[::2])
@pytest.mark.parametrize("scale", (2.0**-62, 2.0**-74, 2.0**62))
def test_denormals_and_infinities_follow_the_definition(dtype, scale):
    """float32 keeps denormals, bfloat16 flushes them, on a thread that flushes and on one that does not; sums overflow."""
    a, b = numbers((13, 300), torch.float32, 1) * scale, numbers((300, 37), torch.float32, 2) * scale
    a, b = a.to(dtype), b.to(dtype)
    added = torch.full((37,), 3 * 2.0**-128).to(dtype)
    expected = reference(a, b), reference(a, b, added, 0.5, 0.25)
    for flush in (False, True):
        torch.set_flush_denormal(flush)
        try:
            found = product(a, b), product(a, b, added, 0.5, 0.25)
        finally:
            torch.set_flush_denormal(False)
        assert equal(found[0], expected[0])
        assert equal(found[1], expected[1])


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_nan_is_the_same_and_no_finite_output_sees_one(dtype):
    """NaN and infinity meet in their rows and columns only, and give the one quiet NaN, whatever the payload was."""
    a, b = numbers((20, 300), dtype, 1), numbers((300, 40), dtype, 2)
    clean = product(a, b)
    a[3, 7], a[5, 290], b[100, 9] = -math.nan, math.inf, -math.inf
    b[290, 1] = 0
    found = product(a, b)
    untouched = torch.ones(20, 40, dtype=torch.bool)
    untouched[3], untouched[5], untouched[:, 9], untouched[:, 1] = False, False, False, False
    assert equal(found[untouched], clean[untouched])
    nans = found[found.isnan()]
    assert equal(nans, torch.full_like(nans, math.nan))
    assert found[5, 1].isnan()
    if dtype != torch.float64:  # the reference's fractions are finite
        assert equal(found, reference(a, b))


def test_the_reference_rounds_once():
    """The reference's fused multiply-add equals exact arithmetic, also where the sum is half way between two numbers."""
    for seed in range(3):
        draw = np.random.default_rng(seed)
        a, b = draw.standard_normal(300), draw.standard_normal(300)
        c = np.where(
            draw.random(300) < 0.5,
            -a * b * (1 + draw.integers(-3, 4, 300) * 2.0**-52),
            draw.standard_normal(300) * 2.0 ** draw.integers(-60, 60, 300),
        )
        assert [*fma64(a, b, c)] == [fma_exact(*one) for one in zip(a, b, c)]
        short = [x.astype(np.float32) for x in (a, b, c)]
        assert [*fma32(*short)] == [np.float32(fma_odd(*map(float, one))) for one in zip(*short)]


def fma_odd(a, b, c):
    """The exact a b + c as a float64 that rounds to float32 as it would: nudged off a half way that it only rounds to."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    near = float(exact)
    return (
        near
        if Fraction(near) == exact
        else np.nextafter(near, math.inf if exact > Fraction(near) else -math.inf)
    )


def test_a_row_does_not_see_the_batch():
    """The first row of a product, and of any item of a batch, has the same bits with 1 to 257 rows, in any place."""
    for dtype in FLOATS:
        row, weight = numbers((1, 700), dtype, 1), numbers((65, 700), dtype, 2).t()
        alone = product(row, weight)
        for rows in (2, 3, 4, 5, 12, 13, 17, 33, 128, 257):
            batch = numbers((rows, 700), dtype, rows)
            for place in {0, rows // 2, rows - 1}:
                batch[place] = row[0]
                assert equal(product(batch, weight)[place : place + 1], alone)
        items = torch.stack([batch[:9], batch[-9:], batch[:9]])
        assert equal(product(items, weight.expand(3, 700, 65))[1, -1:], alone)
        assert equal(product(weight.t(), row[0]), alone[0])


@settings(max_examples=8, derandomize=True, deadline=None)
@given(
    size=st.one_of(
        st.tuples(st.integers(1, 300), st.integers(1, 300), st.integers(1, 900)),
        st.tuples(st.integers(1, 16), st.integers(1, 80), st.integers(4000, 30000)),
        st.tuples(st.integers(200, 1300), st.integers(1, 1300), st.integers(1, 40)),
    ),
    dtype=st.sampled_from(FLOATS), left=layouts, right=layouts, seed=st.integers(0, 99),
)  # fmt: skip
def test_products_have_the_same_bits_at_any_thread_count(size, dtype, left, right, seed):
    """A product cut into tiles, panels and chunks has one result over 1, 2, 3, 4 and 8 threads, as exact as torch's."""
    m, n, k = size
    a, b = laid_out((m, k), dtype, seed, left), laid_out((k, n), dtype, seed + 1, right)
    seen, value = over_threads(lambda: product(a, b))
    assert len(seen) == 1
    close(value, a.double() @ b.double(), dtype, scale=math.sqrt(k) + 4, torchs=a @ b)


def test_calls_from_several_threads_do_not_share_memory():
    """Products that several Python threads compute at once, on teams of OpenMP threads, have the bits of one alone."""
    torch.set_num_threads(2)
    factors = [
        (numbers((m, k), dtype, m), numbers((n, k), dtype, n).t())
        for dtype in FLOATS
        for m, n, k in ((130, 140, 300), (2, 300, 600), (40, 50, 60))
    ]
    expected = [product(a, b) for a, b in factors]

    def again(_):
        torch.set_num_threads(2)
        return [product(a, b) for a, b in factors]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(again, range(12)):
            assert all(map(equal, found, expected))


FORMS = {
    "mm": lambda a, b, c, i: torch.mm(a, b),
    "mm out": lambda a, b, c, i: torch.mm(a, b, out=torch.empty(0, dtype=a.dtype)),
    "mm out of another layout": lambda a, b, c, i: torch.mm(a, b, out=torch.empty_like(c.t()).t()),
    "matmul": lambda a, b, c, i: a @ b.expand(2, *b.shape),
    "linear": lambda a, b, c, i: torch.nn.functional.linear(a, b.t(), c[0]),
    "addmm": lambda a, b, c, i: torch.addmm(c, a, b, beta=0.5, alpha=2),
    "addmm beta 0": lambda a, b, c, i: torch.addmm(c * math.nan, a, b, beta=0),
    "addmm number": lambda a, b, c, i: torch.addmm(c[0, 0], a, b),
    "addmm column": lambda a, b, c, i: torch.addmm(c[:, :1], a, b),
    "addmm_": lambda a, b, c, i: c.clone().addmm_(a, b, beta=0.5),
    "addmm out": lambda a, b, c, i: torch.addmm(c, a, b, out=c.clone()),
    "relu": lambda a, b, c, i: torch._addmm_activation(c[0], a, b),
    "gelu": lambda a, b, c, i: torch._addmm_activation(c[0], a, b, beta=0.5, use_gelu=True),
    "bmm": lambda a, b, c, i: torch.bmm(i(a), i(b)),
    "bmm out": lambda a, b, c, i: torch.bmm(i(a), i(b), out=torch.empty(0, dtype=a.dtype)),
    "baddbmm": lambda a, b, c, i: torch.baddbmm(c, i(a), i(b), alpha=2),
    "baddbmm items": lambda a, b, c, i: torch.baddbmm(i(c), i(a), i(b)),
    "baddbmm_": lambda a, b, c, i: i(c).clone().baddbmm_(i(a), i(b), beta=2),
    "addbmm": lambda a, b, c, i: torch.addbmm(c, i(a), i(b)),
    "addbmm_": lambda a, b, c, i: c.clone().addbmm_(i(a), i(b), beta=0.5, alpha=2),
    "mv": lambda a, b, c, i: torch.mv(a, b[:, 0]),
    "mv out": lambda a, b, c, i: torch.mv(a, b[:, 0], out=torch.empty(0, dtype=a.dtype)),
    "addmv": lambda a, b, c, i: torch.addmv(c[:, 0], a, b[:, 0], beta=2, alpha=0.5),
    "addmv number": lambda a, b, c, i: torch.addmv(c[0, 0], a, b[:, 0]),
    "addmv_": lambda a, b, c, i: c[:, 0].clone().addmv_(a, b[:, 0]),
    "addr": lambda a, b, c, i: torch.addr(c, a[:, 0], b[0], beta=0.5, alpha=2),
    "addr_": lambda a, b, c, i: c.clone().addr_(a[:, 0], b[0]),
    "addr out": lambda a, b, c, i: torch.addr(c[0], a[:, 0], b[0], out=torch.empty(0, dtype=a.dtype)),
    "einsum": lambda a, b, c, i: torch.einsum("ik,kj->ji", a, b),
    "inner": lambda a, b, c, i: torch.inner(a, b.t()),
    "tensordot": lambda a, b, c, i: torch.tensordot(a, b, 1),
    "chain": lambda a, b, c, i: torch.linalg.multi_dot([a, b, c.t()]),
}


def items(x):
    return torch.stack([x, 2 * x, -x])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_ours_and_means_what_torchs_means(name, dtype, machine_invariant_kernels):
    """Each aten form has torch's value, shape and strides, one result over threads, and never torch's product."""
    a, b, c = (numbers(shape, dtype, seed) for seed, shape in enumerate(((37, 300), (300, 50), (37, 50))))
    torch.set_num_threads(1)
    torchs = FORMS[name](a, b, c, items)
    with machine_invariant_kernels(products.REPLACEMENTS):
        seen, value = over_threads(lambda: FORMS[name](a, b, c, items))
        with torch.profiler.profile() as profile:
            FORMS[name](a, b, c, items)
    assert len(seen) == 1
    assert value.stride() == torchs.stride()
    exact = FORMS[name](a.double(), b.double(), c.double(), items)
    close(value, exact, dtype, scale=40, torchs=torchs)
    assert not any("mkldnn" in event.key for event in profile.key_averages())


def test_gradients_are_products_of_ours(machine_invariant_kernels):
    """The gradients of a linear layer are the products of the definition, and equal to finite differences."""
    x, weight, grad = (
        numbers((9, 300), torch.float32, 0),
        numbers((20, 300), torch.float32, 1),
        numbers((9, 20), torch.float32, 2),
    )
    x.requires_grad_(), weight.requires_grad_()
    small = [numbers(shape, torch.float64, 3).requires_grad_() for shape in ((3, 4), (5, 4), (5,))]
    with machine_invariant_kernels(products.REPLACEMENTS):
        made = torch.autograd.grad(torch.nn.functional.linear(x, weight), (x, weight), grad)
        torch.autograd.gradcheck(torch.nn.functional.linear, small)
        torch.autograd.gradcheck(
            torch.baddbmm,
            [
                numbers((2, 3, 5), torch.float64, 1).requires_grad_(),
                numbers((2, 3, 4), torch.float64, 2).requires_grad_(),
                numbers((2, 4, 5), torch.float64, 3).requires_grad_(),
            ],
        )
    assert equal(made[0], reference(grad, weight.detach()))
    assert equal(made[1], reference(grad.t(), x.detach()))


def test_what_is_not_ours_is_torchs(machine_invariant_kernels):
    """Integers, empty factors and wrong arguments give what torch gives; complex factors of 16 bits are refused."""
    a = numbers((30, 30), torch.float32, 0)
    whole = torch.arange(900).view(30, 30)
    with machine_invariant_kernels(products.REPLACEMENTS):
        assert torch.equal(whole @ whole, (whole.double() @ whole.double()).long())
        assert torch.equal(torch.mm(a[:, :0], a[:0]), torch.zeros(30, 30))
        assert torch.equal(torch.addmm(a, a[:, :0], a[:0], beta=2), 2 * a)
        assert torch.mm(a[:0], a).shape == (0, 30)
        for wrong in (lambda: a @ a[:20], lambda: torch.mm(a, a.double()), lambda: torch.mm(a, a[0]), lambda: torch.addmm(a[:20], a, a),
                      lambda: torch.mm(a, a, out=torch.empty(30, 30, dtype=torch.float64))):  # fmt: skip
            with pytest.raises(RuntimeError) as ours:
                wrong()
            assert not isinstance(ours.value, UnimplementedError)
        assert torch.mm(a[:0].cfloat(), a.cfloat()).shape == (0, 30)
        with pytest.raises(UnimplementedError, match="aten::mm of complex32"):
            torch.mm(a.chalf(), a.chalf())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.mm(a, a, out=torch.empty(3, 3))
    assert "was resized" in str(caught[0].message)


def test_the_error_is_at_most_twice_torchs():
    """The largest error against float64 is at most twice that of torch's product, for short and long inner dimensions."""
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for m, n, k in ((64, 64, 64), (64, 64, 1000), (32, 32, 20000), (1, 500, 3000)):
            a, b = numbers((m, k), dtype, 1), numbers((k, n), dtype, 2)
            exact = a.double() @ b.double()
            ours, torchs = (((x.double() - exact).abs().max()) for x in (product(a, b), a @ b))
            assert ours <= 2 * torchs


SWEEP = """
import sys, torch
from samebits._digest import of_value
from samebits.arithmetic.product import product
multiply = product if sys.argv[1] == "ours" else (lambda a, b, *c: torch.addmm(*c, a, b) if c else a @ b)
made = torch.Generator().manual_seed(0)
def numbers(rows, columns, dtype, turned):
    x = torch.randn((columns, rows) if turned else (rows, columns), generator=made)
    return (x.t() if turned else x).to(dtype)
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    found = []
    shapes = [(i, i, i) for i in range(1, int(sys.argv[2]))] + [(5, 100, 700), (1, 90, 700), (90, 1, 700), (100, 3, 300), (130, 200, 600), (1, 1, 5000), (33, 64, 2500), (300, 70, 64)]
    for number, (m, n, k) in enumerate(shapes):
        a, b = numbers(m, k, dtype, number % 2), numbers(k, n, dtype, number // 2 % 2)
        torch.set_num_threads(1 + number % 3)
        found += [multiply(a, b), multiply(a, b, numbers(1, n, dtype, 0)[0]), multiply(a * 2.0**-60, b * 2.0**-70)]
        if dtype == torch.float32:
            found.append(multiply(a[:, 1:], b[1:]) if k > 1 else a)
    print(dtype, of_value(found))
"""


def sweep(which="ours", most=101, **environment):
    return printed_elsewhere("-c", SWEEP, which, most, **environment)


@pytest.mark.slow
def test_products_have_the_same_bits_on_another_cpu():
    """Squares of 1 to 100 and long shapes, of every type, have the bits of the kernels that are compiled for AVX2."""
    assert sweep() == sweep(**AVX2_ENVIRONMENT)


@pytest.mark.slow
@pytest.mark.skipif("avx512_bf16" not in Path("/proc/cpuinfo").read_text(), reason="no AVX512_BF16")
def test_pairs_have_the_same_bits_with_one_instruction_and_with_two():
    """As an AMD CPU bfloat16 is multiplied by VDPBF16PS, as an Intel CPU by two fused multiply-adds: equal bits."""
    code = (
        "import torch; from samebits.arithmetic.product import tiles, vectors; from samebits._native import llvm\n"
        "made = llvm._machine().emit_assembly(llvm._optimized(tiles.tiled(vectors.BFLOAT16, torch.bfloat16).module(), False)); print('dpbf16ps' in made)"
    )
    seen = {}
    for kind in ("x86-64-v4-bf16", "x86-64-v4"):
        seen[printed_elsewhere("-c", code, SAMEBITS_CPU_NAME=kind).strip()] = sweep(SAMEBITS_CPU_NAME=kind)
    assert set(seen) == {"True", "False"}
    assert seen["True"] == seen["False"]


@pytest.mark.slow
def test_torchs_products_differ_on_another_cpu():
    """Negative control: with torch's own kernels MKL's other path has other bits."""
    assert sweep("torch", 30) != sweep("torch", 30, MKL_CBWR="COMPATIBLE")
