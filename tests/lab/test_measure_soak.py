import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import samebits
from lab.catalogue.case import ALL_DTYPES, ReviewCase, with_gradients
from lab.review.measure import measure

pytestmark = pytest.mark.soak

OPS = {
    "sum": lambda x: x.sum(),
    "sum dim": lambda x: x.sum(0),
    "mean": lambda x: x.mean(-1),
    "prod": lambda x: (x * 1e-3 + 1).prod(),
    "norm 1": lambda x: x.norm(1),
    "var": lambda x: x.var(),
    "softmax": lambda x: x.softmax(0),
    "exp": torch.exp,
    "gelu": F.gelu,
    "pow": lambda x: x.abs().pow(1.7),
    "cumsum": lambda x: x.cumsum(0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "mse": lambda x: F.mse_loss(x, x.detach() * 0.5),
    "x[i]": lambda x: x[torch.arange(x.shape[0] * 3) % x.shape[0]],
    "conv1d": lambda x: F.conv1d(x.reshape(1, x.shape[0], -1), torch.ones(3, x.shape[0], 1, dtype=x.dtype)),
}
COUNTED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]  # one count for all examples
DTYPES = st.sampled_from(ALL_DTYPES)
SIZES = st.one_of(st.integers(1, 40), st.sampled_from([255, 256, 257, 1000, 4095, 32769, 200_003]))


@st.composite
def tensors(draw):
    """A matrix of at most 3 million elements, contiguous, transposed, with steps, or at an offset."""
    rows = draw(SIZES)
    columns = draw(SIZES.filter(lambda n: n * rows <= 3_000_000))
    layout = draw(st.sampled_from(["contiguous", "transposed", "steps", "offset"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(draw_dtype)

    draw_dtype = draw(DTYPES)
    if layout == "transposed":
        return normal(columns, rows).t()
    if layout == "steps":
        return normal(rows, columns, 2)[..., 0]
    return normal(rows * columns + 3)[3:].view(rows, columns) if layout == "offset" else normal(rows, columns)


def equal(run, count):
    count("calls of ops, each repeated and over 1, 2, 3, 4 and 8 threads")
    samebits.set_random_seed(0)
    with samebits.enable_op_determinism(across="threads"):
        row = measure(ReviewCase("soak", "case", lambda: iter([run])))
    assert row.equal or row.failed, row.result()


@pytest.mark.parametrize("name", OPS)
@settings(max_examples=60, suppress_health_check=COUNTED)
@given(x=tensors())
def test_ops_have_the_same_bits_for_any_shape_stride_and_dtype(name, x, soak):
    """Forward and backward of an op: equal from run to run and over 1, 2, 3, 4 and 8 threads."""
    equal(lambda: with_gradients(OPS[name], [x]), soak)


@settings(max_examples=300, suppress_health_check=COUNTED)
@given(
    data=st.data(),
    dtype=DTYPES,
    m=st.integers(1, 40),
    n=st.integers(1, 600),
    k=SIZES,
    transposed=st.booleans(),
)
def test_products_have_the_same_bits_for_any_shape(soak, data, dtype, m, n, k, transposed):
    """mm, addmm, bmm and mv with narrow outputs and a long inner dimension, plain and transposed."""
    k = min(k, 3_000_000 // max(m, n))
    generator = torch.Generator().manual_seed(m * n)
    a = torch.randn(k, m, generator=generator).t() if transposed else torch.randn(m, k, generator=generator)
    b = torch.randn(k, n, generator=generator)
    a, b = a.to(dtype), b.to(dtype)
    equal(lambda: (a @ b, torch.addmm(b[0], a, b), torch.bmm(a[None], b[None]), a @ b[:, 0]), soak)


def test_the_check_can_fail():
    """Negative control: without the switch some product or sum differs over threads."""
    x = torch.randn(1_000_003, generator=torch.Generator().manual_seed(1))
    rows = [
        measure(ReviewCase("soak", "case", lambda run=run: iter([run])))
        for run in (x.sum, x.mean, lambda: x.norm(1))
    ]
    assert any(row.threads is False for row in rows)
