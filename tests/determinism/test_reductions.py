"""Reductions: the same bits at any thread count."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_testing import close, laid_out, layouts, numbers, over_threads, replaced
from samebits.determinism._kernels import reductions, softmax

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


@pytest.mark.slow
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


def test_torchs_own_vary():
    """Negative control: without the replacements the same check finds several results of a sum, which torch splits by threads."""
    x, y = numbers((3_000_001,), torch.float32, 0), numbers((1111, 1777), torch.float32, 0)
    assert len(over_threads(x.sum)[0]) > 1
    assert len(over_threads(lambda: y[:, ::2].sum(0))[0]) > 1
