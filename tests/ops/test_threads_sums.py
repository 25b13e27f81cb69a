"""Reductions, products of matrices and layer normalisation: the same bits at any thread count."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from support import THREADS, replaced

from samebits.determinism import attention, batchnorm, groupnorm, layernorm, matmul, reductions, softmax
from samebits.digest import of_value


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def over_threads(compute):
    """The digests of what `compute` returns at each thread count, and its last value."""
    seen = set()
    for count in THREADS:
        torch.set_num_threads(count)
        value = compute()
        seen.add(of_value(value))
    return seen, value


def close(value, expected, dtype, *, scale=1.0, torchs=None):
    """As near to the value in double as the type allows, or at least as torch's own is."""
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3, torch.complex64: 2e-6}.get(
        dtype, 1e-13
    )
    assert value.dtype == dtype
    expected = expected.to(torch.complex128 if value.is_complex() else torch.float64)
    slack = 0 if torchs is None else 2 * (torchs - expected).abs().max()
    assert (value - expected).abs().max() <= tolerance * scale * max(1.0, expected.abs().max().item()) + slack


def numbers(shape, dtype, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


layouts = st.sampled_from(("plain", "strided", "transposed", "expanded"))


def laid_out(shape, dtype, seed, layout):
    rows, columns = shape
    if layout == "strided":
        return numbers((rows, 2 * columns), dtype, seed)[:, ::2]
    if layout == "transposed":
        return numbers((columns, rows), dtype, seed).t()
    if layout == "expanded":
        return numbers((rows, 1), dtype, seed).expand(rows, columns)
    return numbers(shape, dtype, seed)


REDUCTIONS = {
    "sum": torch.sum,
    "mean": torch.mean,
    "nansum": torch.nansum,
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1),
    "norm 2": lambda x: torch.linalg.vector_norm(x, 2),
    "norm 3": lambda x: torch.linalg.vector_norm(x, 3),
    "norm 0": lambda x: torch.linalg.vector_norm(x, 0),
    "var": torch.var,
    "std_mean": lambda x: torch.stack(torch.std_mean(x, correction=0)),
    "dot": lambda x: torch.dot(x.flatten(), x.flatten()),
    "prod": lambda x: (1 + x / 1024).prod(),
    "mse_loss": lambda x: torch.nn.functional.mse_loss(x, x / 2),
    "logsumexp": lambda x: x.logsumexp((0, 1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=8, derandomize=True, deadline=None)
@given(
    rows=st.integers(1, 700),
    columns=st.integers(60, 900),
    dtype=st.sampled_from((torch.float32, torch.float64, torch.bfloat16, torch.float16)),
    layout=layouts,
    seed=st.integers(0, 99),
)
def test_reductions_to_one_element_have_the_same_bits_at_any_thread_count(
    name, rows, columns, dtype, layout, seed
):
    """A reduction to one element has one result over 1, 2, 3, 4 and 8 threads, and torch's value, shape and type."""
    x = laid_out((rows, columns), dtype, seed, layout)
    with replaced(reductions):
        seen, value = over_threads(lambda: REDUCTIONS[name](x))
    assert len(seen) == 1
    wide = REDUCTIONS[name](x.double())
    finite = wide.abs() < torch.finfo(dtype).max
    # A sum of numbers of both signs is as exact as the sum of their magnitudes allows.
    scale = max(1.0, x.double().abs().sum().item()) if name in ("sum", "nansum") else 8.0
    if finite.all():
        close(value, wide, dtype, scale=scale, torchs=REDUCTIONS[name](x))


@pytest.mark.parametrize("dtype", (torch.complex64, torch.complex128))
@pytest.mark.parametrize("name", ("sum", "mean", "norm 1", "norm 2", "var", "std_mean", "dot", "prod"))
def test_complex_reductions_have_the_same_bits_at_any_thread_count(name, dtype):
    """Complex reductions to one element have one result over thread counts, that of the same op in torch."""
    x = laid_out((300, 250), dtype, 1, "strided")
    with replaced(reductions):
        seen, value = over_threads(lambda: REDUCTIONS[name](x))
    assert len(seen) == 1
    torch.testing.assert_close(value, REDUCTIONS[name](x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("keepdim", (False, True))
def test_reductions_keep_torchs_shapes_types_and_out(keepdim):
    """Dimensions, keepdim, dtype and out= mean what they mean to torch."""
    x = numbers((1, 50000, 1), torch.float32, 0)
    calls = (
        lambda: x.sum(1, keepdim=keepdim),
        lambda: x.mean((0, 1, 2), keepdim=keepdim),
        lambda: x.sum((0, 1), keepdim=keepdim, dtype=torch.float64),
        lambda: torch.sum(x, 1, keepdim=keepdim, out=torch.empty(0)),
        lambda: torch.linalg.vector_norm(x, 1, (0, 1), keepdim=keepdim, dtype=torch.float64),
        lambda: x.prod(1, keepdim=keepdim),
        lambda: x.var((1,), keepdim=keepdim),
        lambda: x.std((0, 1, 2), correction=0, keepdim=keepdim),
    )
    before = [call() for call in calls]
    with replaced(reductions):
        after = [call() for call in calls]
    for old, new in zip(before, after, strict=True):
        assert (new.shape, new.dtype, new.stride()) == (old.shape, old.dtype, old.stride())
        torch.testing.assert_close(new, old, rtol=1e-3, atol=1e-3)
    with replaced(reductions), pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
        torch.linalg.vector_norm(x, out=torch.empty((), dtype=torch.float64))
    with replaced(reductions), pytest.raises(RuntimeError, match="appears multiple times"):
        x.sum((1, 1))
    with replaced(reductions), pytest.raises(IndexError):
        x.sum(7)


def test_reductions_that_are_not_ours_are_torchs():
    """Integers, dimensions that are wrong, and an `out` of another type: torch's results and torch's errors."""
    x, whole = numbers((400, 500), torch.float32, 0), torch.arange(200_000).view(400, 500)
    double = torch.empty((), dtype=torch.float64)
    calls = (
        lambda: whole.t().sum(),
        lambda: whole.t().nansum(),
        lambda: (whole.t() > 5).sum(),
        lambda: whole[:, ::2].sum(0),
        lambda: whole.t().mean(dtype=torch.float32),
        lambda: torch.sum(x, (0, 1), out=double),
        lambda: torch.sum(x.t(), (0,), out=torch.empty(0, dtype=torch.float64)),
        lambda: torch.mean(x, (0, 1), out=double),
        lambda: torch.prod(1 + x.view(-1) / 1024, 0, out=double),
        lambda: torch.var(x, (0, 1), out=double),
    )
    for call in calls:
        expected = call().clone()
        with replaced(reductions):
            found = call()
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
    with replaced(reductions, softmax):
        for wrong in (
            lambda: x.t().sum(7),
            lambda: x.t().sum(-3),
            lambda: x.softmax(6),
            lambda: x.softmax(-4),
        ):
            with pytest.raises(IndexError, match="out of range"):
                wrong()
        with pytest.raises(RuntimeError, match="appears multiple times"):
            x.t().sum((0, 0))


def test_reductions_of_special_values_are_torchs():
    """NaN, infinities and an empty or integer tensor reduce as they do in torch."""
    x = numbers((40000,), torch.float32, 0)
    nan, inf = x.clone(), x.clone()
    nan[77], inf[77] = math.nan, math.inf
    with replaced(reductions):
        assert nan.sum().isnan() and nan.mean().isnan() and nan.var().isnan()
        assert nan.nansum().isfinite()
        assert inf.sum() == math.inf and torch.linalg.vector_norm(inf, 1) == math.inf
        assert torch.ones(0).sum() == 0 and torch.ones(0).prod() == 1
        assert torch.ones(50000, dtype=torch.int64).sum() == 50000
        assert torch.linalg.vector_norm(inf, math.inf) == math.inf
        assert not torch.ones(40000).var(correction=40000).isfinite()


PRODUCTS = {
    "mm": lambda a, b: a @ b,
    "addmm": lambda a, b: torch.addmm(a[:, :1], a, b, beta=0.5, alpha=2),
    "addmm beta 0": lambda a, b: torch.addmm(a[:, :1] * math.nan, a, b, beta=0),
    "addmm_": lambda a, b: (a @ b).addmm_(a, b, beta=0.5),
    "out": lambda a, b: torch.mm(a, b, out=torch.empty(0, dtype=a.dtype)),
    "mv": lambda a, b: a @ b[:, 0],
    "addmv": lambda a, b: torch.addmv(a[:, 0], a, b[:, 0], beta=2, alpha=0.5),
    "bmm": lambda a, b: torch.bmm(a.expand(3, *a.shape), b.expand(3, *b.shape)),
    "baddbmm": lambda a, b: torch.baddbmm(a[:, :1], a.expand(3, *a.shape), b.expand(3, *b.shape), alpha=2),
    "linear": lambda a, b: torch.nn.functional.linear(a, b.t().contiguous(), b[0]),
}


@pytest.mark.parametrize("name", PRODUCTS)
@settings(max_examples=8, derandomize=True, deadline=None)
@given(
    sizes=st.one_of(
        st.tuples(st.integers(1, 200), st.integers(1, 300), st.integers(1, 200)),
        st.tuples(st.integers(1, 16), st.integers(2000, 30000), st.integers(1, 80)),
        st.tuples(st.integers(200, 900), st.integers(1, 64), st.integers(1, 16)),
    ),
    dtype=st.sampled_from((torch.float32, torch.float64, torch.complex64, torch.complex128)),
    left=layouts,
    right=layouts,
    seed=st.integers(0, 99),
)
def test_products_of_matrices_have_the_same_bits_at_any_thread_count(name, sizes, dtype, left, right, seed):
    """A product of matrices has one result over 1, 2, 3, 4 and 8 threads, and the value of torch's in double."""
    rows, inner, columns = sizes
    a, b = laid_out((rows, inner), dtype, seed, left), laid_out((inner, columns), dtype, seed + 1, right)
    with replaced(matmul):
        seen, value = over_threads(lambda: PRODUCTS[name](a, b))
    assert len(seen) == 1
    wide = torch.complex128 if dtype.is_complex else torch.float64
    close(value, PRODUCTS[name](a.to(wide), b.to(wide)), dtype, scale=math.sqrt(inner) + 4)


def test_conjugated_factors_are_conjugated():
    """A lazily conjugated or transposed complex factor enters the product as torch has it."""
    a, b = numbers((300, 200), torch.complex64, 0), numbers((300, 100), torch.complex64, 1)
    expected = a.mH.contiguous().resolve_conj() @ b
    with replaced(matmul):
        torch.testing.assert_close(a.mH @ b, expected)
        torch.testing.assert_close(a.conj().t() @ b.conj().resolve_conj().conj(), expected)


def test_wrong_products_raise_torchs_errors():
    """Shapes and types that do not fit raise what torch raises."""
    a = numbers((300, 300), torch.float32, 0)
    with replaced(matmul):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            a @ a[:200]
        with pytest.raises(RuntimeError, match="dtype"):
            a @ a.double()
        with pytest.raises(RuntimeError, match="Expected out tensor to have dtype"):
            torch.mm(a, a, out=torch.empty((300, 300), dtype=torch.float64))


def test_torchs_own_kernels_differ_between_thread_counts():
    """Negative control: without the replacements the same checks find several results."""
    x, head = numbers((3_000_001,), torch.float32, 0), numbers((10, 100000), torch.float32, 1)
    grads = numbers((1500, 768), torch.bfloat16, 2)
    assert len(over_threads(x.sum)[0]) > 1
    assert len(over_threads(lambda: head @ numbers((100000, 64), torch.float32, 3))[0]) > 1
    assert len(over_threads(lambda: layer_norm_gradients(grads, torch.bfloat16))[0]) > 1


def layer_norm_gradients(x, parameter_dtype):
    x = x.detach().requires_grad_()
    columns = x.shape[-1]
    weight = numbers((columns,), parameter_dtype, 1).requires_grad_()
    bias = numbers((columns,), parameter_dtype, 2).requires_grad_()
    out = torch.nn.functional.layer_norm(x, (columns,), weight, bias)
    return torch.autograd.grad(out, (x, weight, bias), numbers(x.shape, out.dtype, 3))


@settings(max_examples=12, derandomize=True, deadline=None)
@given(
    rows=st.integers(1, 900),
    columns=st.integers(1, 300),
    dtype=st.sampled_from((torch.float32, torch.float64, torch.bfloat16)),
    mixed=st.booleans(),
    seed=st.integers(0, 99),
)
def test_layer_norm_gradients_have_the_same_bits_at_any_thread_count(rows, columns, dtype, mixed, seed):
    """Layer normalisation's three gradients have one result over thread counts, and the value of the formula in double."""
    parameter = torch.float32 if mixed and dtype == torch.bfloat16 else dtype
    x = numbers((rows, columns), dtype, seed)
    with replaced(layernorm):
        seen, value = over_threads(lambda: layer_norm_gradients(x, parameter))
    assert len(seen) == 1
    x, columns = x.double(), x.shape[-1]
    normal = torch.nn.functional.layer_norm(x, (columns,))
    grad = numbers(x.shape, dtype, 3).double()
    scale = 1 + grad.abs().sum(0).max().item()
    assert (value[1].double() - (grad * normal).sum(0)).abs().max() <= scale * {torch.float64: 1e-12}.get(
        dtype, 1e-2
    )
    assert (value[2].double() - grad.sum(0)).abs().max() <= scale * {torch.float64: 1e-12}.get(dtype, 1e-2)


def test_layer_norm_in_bfloat16_is_more_exact_than_torchs():
    """The bfloat16 weight gradient of 1500 rows is at least five times nearer to the exact one than torch's at two threads."""
    x = numbers((1500, 768), torch.bfloat16, 0)
    exact = layer_norm_gradients(x.double(), torch.float64)[1]
    torch.set_num_threads(2)
    with replaced(layernorm):
        mine = (layer_norm_gradients(x, torch.bfloat16)[1] - exact).abs().max()
    assert 5 * mine < (layer_norm_gradients(x, torch.bfloat16)[1] - exact).abs().max()


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    shape=st.lists(st.sampled_from((1, 2, 3, 7, 16, 33, 100, 500)), min_size=2, max_size=4),
    order=st.randoms(use_true_random=False),
    step=st.booleans(),
    keepdim=st.booleans(),
)
def test_several_sums_have_the_same_bits_at_any_thread_count(shape, order, step, keepdim):
    """Sums over some dimensions of a transposed or strided tensor: one result over thread counts, torch's value and shape."""
    dims = order.sample(range(len(shape)), order.randint(1, len(shape) - 1))
    x = numbers((*shape[:-1], shape[-1] * (2 if step else 1)), torch.float32, 0)
    x = x[..., ::2] if step else x.permute(order.sample(range(len(shape)), len(shape)))
    if not 30000 < x.numel() < 2_000_000:
        return
    for run in (torch.sum, torch.mean, torch.nansum):
        with replaced(reductions):
            seen, value = over_threads(lambda: run(x, dims, keepdim))  # noqa: B023
        assert len(seen) == 1
        expected = run(x, dims, keepdim)
        assert value.stride() == expected.stride() and value.shape == expected.shape
        torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-3)


@settings(max_examples=20, derandomize=True, deadline=None)
@given(
    shape=st.sampled_from(
        ((130, 300), (4, 8, 70, 70), (3, 9, 2000), (20000, 3), (3, 20000), (50, 7), (600, 128))
    ),
    dim=st.integers(0, 3),
    dtype=st.sampled_from((torch.float32, torch.bfloat16, torch.float64)),
    transposed=st.booleans(),
)
def test_softmax_has_the_same_bits_at_any_thread_count(shape, dim, dtype, transposed):
    """Softmax and its gradient along any dimension: one result over thread counts, and torch's value and layout."""
    x = numbers(shape, dtype, 0)
    x, dim = x.transpose(0, 1) if transposed else x, dim % len(shape)

    def compute():
        leaf = x.detach().requires_grad_()
        y = leaf.softmax(dim)
        return y, torch.autograd.grad(y, leaf, x.sin())[0]

    with replaced(softmax):
        seen, value = over_threads(compute)
    assert len(seen) == 1
    tolerance = {torch.bfloat16: 2e-2}.get(dtype, 1e-6)
    for mine, torchs in zip(value, compute(), strict=True):
        assert mine.stride() == torchs.stride()
        torch.testing.assert_close(mine, torchs, rtol=tolerance, atol=tolerance)


NORMALISED = {
    "rows": lambda: numbers((3000, 32), torch.float32, 0),
    "one value": lambda: numbers((500, 16, 1), torch.float32, 0),
    "channels last": lambda: numbers((8, 16, 30, 30), torch.float32, 0).to(memory_format=torch.channels_last),
    "contiguous": lambda: numbers((8, 16, 30, 30), torch.float32, 0),
    "volume, channels last": lambda: numbers((2, 8, 8, 20, 20), torch.float32, 0).to(
        memory_format=torch.channels_last_3d
    ),
    "transposed": lambda: numbers((20, 300, 16), torch.float32, 0).transpose(1, 2),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64))
@pytest.mark.parametrize("form", NORMALISED)
@pytest.mark.parametrize("kind", ("batch", "batch, evaluation", "group"))
def test_batch_and_group_norm_have_the_same_bits_at_any_thread_count(kind, form, dtype):
    """Batch and group normalisation, running statistics and gradients included: one result in every memory layout."""
    x = NORMALISED[form]().to(dtype)
    channels = x.shape[1]

    def compute():
        leaf = x.detach().requires_grad_()
        weight = numbers((channels,), dtype, 1).requires_grad_()
        bias = numbers((channels,), dtype, 2).requires_grad_()
        mean, var = torch.zeros(channels, dtype=dtype), torch.ones(channels, dtype=dtype)
        if kind == "group":
            y = F.group_norm(leaf, 4, weight, bias)
        else:
            y = F.batch_norm(leaf, mean, var, weight, bias, kind == "batch")
        return y.detach(), mean, var, *torch.autograd.grad(y, (leaf, weight, bias), x.sin())

    with replaced(batchnorm, groupnorm):
        seen, value = over_threads(compute)
    assert len(seen) == 1
    for mine, torchs in zip(value, compute(), strict=True):
        assert mine.stride() == torchs.stride() and mine.dtype == torchs.dtype
        tolerance = 0.1 if dtype == torch.bfloat16 else 1e-4
        torch.testing.assert_close(
            mine, torchs, rtol=tolerance, atol=tolerance * (1 + torchs.abs().max().item())
        )


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("queries", (1, 3, 65, 130))
@pytest.mark.parametrize("masked", (False, True))
def test_attention_has_the_same_bits_at_any_thread_count(queries, masked, dtype):
    """Attention and its gradients, few queries and odd lengths included: one result over thread counts."""
    q, k, v = (numbers((2, 4, n, 32), dtype, n).requires_grad_() for n in (queries, 700, 700))
    mask = numbers((2, 1, queries, 700), dtype, 5) if masked else None

    def compute():
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.detach(), *torch.autograd.grad(out, (q, k, v), out.detach().sin())

    with replaced(attention):
        seen, value = over_threads(compute)
    assert len(seen) == 1
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    for mine, torchs in zip(value, compute(), strict=True):
        torch.testing.assert_close(mine, torchs, rtol=tolerance, atol=tolerance)


def test_torchs_softmax_norms_and_attention_differ_between_thread_counts():
    """Negative control: without the replacements these differ."""
    x = numbers((1111, 1777), torch.float32, 0)
    rows = numbers((3000, 32), torch.float32, 0)
    q, k = numbers((2, 8, 1, 64), torch.float32, 0), numbers((2, 8, 4096, 64), torch.float32, 1)
    assert len(over_threads(lambda: x.softmax(0))[0]) > 1
    assert len(over_threads(lambda: F.batch_norm(rows, None, None, training=True))[0]) > 1
    assert len(over_threads(lambda: F.scaled_dot_product_attention(q, k, k))[0]) > 1
    assert len(over_threads(lambda: x[:, ::2].sum(0))[0]) > 1
