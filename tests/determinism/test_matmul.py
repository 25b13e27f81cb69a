"""Products of matrices: the same bits at any thread count. (Those of short types: test_low_precision.py.)"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from op_testing import close, laid_out, layouts, numbers, over_threads, replaced
from samebits.determinism._kernels import matmul, pointwise

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
    "relu": lambda a, b: torch._addmm_activation(b[0], a, b, beta=0.5),
    "gelu": lambda a, b: torch._addmm_activation(b[0], a, b, use_gelu=True),
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
    if dtype.is_complex and name in ("relu", "gelu"):
        return
    a, b = laid_out((rows, inner), dtype, seed, left), laid_out((inner, columns), dtype, seed + 1, right)
    with replaced(matmul, pointwise):
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


def test_torchs_own_vary():
    """Negative control: without the replacements some products have several results; which, depends on the CPU."""
    head = numbers((10, 100000), torch.float32, 1), numbers((100000, 64), torch.float32, 3)
    small = numbers((7, 64), torch.float32, 1), numbers((64, 64), torch.float32, 3)
    deep = numbers((64, 4096), torch.float64, 1), numbers((4096, 129), torch.float64, 3)
    assert any(len(over_threads(lambda: a @ b)[0]) > 1 for a, b in (head, small, deep))  # noqa: B023
