"""Sums and their kin under `across="machines"`: the bits of the definition, whatever the layout, threads and
machine.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exact_sums import fma, reduced, square, times
from op_testing import laid_out, layouts, numbers, replaced
from samebits.determinism._ops import sums, vector_norms
from samebits.errors import UnimplementedError

pytestmark = pytest.mark.slow

LENGTHS = (*range(1, 101), 255, 256, 257, 300, 511, 1000, 4097, 65536, 65537, 140001)
WIDE = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.bfloat16: np.float32,
    torch.float16: np.float32,
}


def as_lanes(x):
    """A tensor in the type of the lanes."""
    return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)


def bits(x):
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(words[x.element_size()]).tolist()


@pytest.fixture(scope="module", autouse=True)
def ours():
    with replaced(sums, vector_norms):
        yield


@pytest.mark.parametrize(
    "dtype", (torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow), torch.bfloat16)
)
def test_a_sum_has_the_bits_of_its_definition(dtype):
    """The sum of every short length and of long ones is that of 16 lanes in blocks of 256, in exact order, rounded once."""
    for length in LENGTHS:
        x = numbers((length,), dtype, length)
        expected = torch.tensor(reduced(as_lanes(x).numpy())).to(dtype)
        assert bits(x.sum()) == bits(expected), length


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    rows=st.integers(1, 700),
    columns=st.integers(1, 300),
    layout=layouts,
    dim=st.sampled_from((0, 1, None)),
    seed=st.integers(0, 9),
)
def test_a_layout_does_not_change_a_sum(rows, columns, layout, dim, seed):
    """Each sum of a matrix is that of the row of its elements in logical order, in any layout and over any dimension."""
    x = laid_out((rows, columns), torch.float32, seed, layout)
    seen = x.sum() if dim is None else x.sum(dim)
    matrix = x.numpy().reshape(1, -1) if dim is None else np.moveaxis(x.numpy(), dim, -1)
    expected = [reduced(np.ascontiguousarray(row)) for row in matrix[::37]]
    assert bits(seen.reshape(-1)[::37].contiguous()) == bits(torch.tensor(np.array(expected)))


@pytest.mark.parametrize("dtype", WIDE)
def test_a_dot_product_is_a_sum_by_fma(dtype):
    """dot and vdot, strided or written into `out`, have the bits of S, whose lanes take a product by fma, in exact order."""
    for length in (*range(1, 40), 255, 256, 257, 300, 511, 1000, 4097):
        x, y = numbers((length,), dtype, length), numbers((length, 3), dtype, length + 1)[:, 1]
        pairs = torch.stack([as_lanes(x), as_lanes(y)], 1).numpy()
        expected = bits(torch.tensor(reduced(pairs, times)).to(dtype))
        assert bits(torch.dot(x, y)) == bits(torch.vdot(y, x)) == expected, length
        assert bits(torch.dot(x, y, out=torch.empty((), dtype=dtype))) == expected
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        torch.dot(x, y[:20])


def test_a_long_row_is_the_sum_of_its_parts():
    """Rows of more than 65,536 numbers, one or several, of more than 256 such parts too: S of the parts' sums, at any thread count."""
    for rows, parts in ((1, 3), (2, 3), (1, 256), (1, 257)):
        x = numbers((rows, parts * 65536), torch.float32, parts)
        expected = bits(x.view(rows, parts, 65536).sum(2).sum(1))
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            assert bits(x.sum(1)) == expected, (rows, parts, threads)
        assert bits(x.sum(1)) != bits(x.flip(1).sum(1))  # control: another order has other bits


@pytest.mark.parametrize("dims", ((0, 2), (1, 3), (0, 2, 3), (0, 1), (2,), (3, 1)))
@pytest.mark.parametrize("last", (False, True))
def test_several_dimensions_are_one_row_in_row_major_order(dims, last):
    """Over several dimensions the elements are numbered in row-major order of these dimensions, also of channels-last tensors."""
    x = numbers((5, 6, 17, 19), torch.float32, 1)
    x = x.to(memory_format=torch.channels_last) if last else x
    kept = [dim for dim in range(4) if dim not in dims]
    rows = x.permute(*kept, *sorted(dims)).reshape(-1, np.prod([x.shape[dim] for dim in dims])).numpy()
    assert bits(x.sum(dims).flatten()) == bits(torch.tensor(np.array([reduced(row) for row in rows])))


def test_a_row_does_not_depend_on_its_neighbours():
    """One row has the same sum, mean, norm and variance alone and at every place of batches."""
    row = numbers((300,), torch.float32, 0)
    for call in (
        lambda x: x.sum(1),
        lambda x: x.mean(1),
        lambda x: torch.linalg.vector_norm(x, 2, 1),
        lambda x: x.var(1),
    ):
        alone = bits(call(row[None]))
        for batch, place in ((2, 0), (2, 1), (17, 5), (129, 128)):
            x = numbers((batch, 300), torch.float32, batch)
            x[place] = row
            assert bits(call(x)[place : place + 1]) == alone


@pytest.mark.parametrize("length", (1, 7, 16, 33, 100, 256, 300, 5000))
def test_means_and_norms_follow_the_definition(length):
    """A mean is S / n, norms take magnitudes or squares by fma, and a root is IEEE's."""
    x = numbers((length,), torch.float32, length)
    v = x.numpy()
    assert bits(x.mean()) == bits(torch.tensor(reduced(v) / np.float32(length)))
    assert bits(torch.linalg.vector_norm(x, 1)) == bits(torch.tensor(reduced(np.abs(v))))
    assert bits(torch.linalg.vector_norm(x)) == bits(torch.tensor(np.sqrt(reduced(v, square))))
    mean = reduced(v.astype(np.float64)) / length
    spread = reduced(v.astype(np.float64) - mean, square)
    assert bits(x.var(correction=0)) == bits(torch.tensor(np.float32(spread / length)))


def test_the_reference_fma_rounds_once():
    """The fma of the tests agrees with exact fractions."""
    from fractions import Fraction

    x, y, z = (numbers((3000,), torch.float32, seed).numpy() for seed in range(3))
    z = (z * np.float32(2) ** np.arange(3000).__mod__(60)[:] * np.float32(2**-40)).astype(np.float32)
    for a, b, c, seen in zip(x, y, z, fma(x, y, z), strict=True):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        below, above = np.nextafter(seen, np.float32(-np.inf)), np.nextafter(seen, np.float32(np.inf))
        distance = abs(Fraction(float(seen)) - exact)
        assert distance <= abs(Fraction(float(below)) - exact)
        assert distance <= abs(Fraction(float(above)) - exact)


def test_a_nan_is_one_nan():
    """Every NaN of a result is the quiet one with a positive sign and no payload, whatever came in."""
    odd = torch.tensor([0x7FC01234, -0x3FEDCC], dtype=torch.int32).view(torch.float32)
    x = torch.cat([torch.ones(40), odd])
    for made in (
        x.sum(),
        x.mean(),
        x.norm(),
        x.var(),
        x.view(2, 21).sum(0)[-1],
        x[:0].mean(),
        torch.ones(1).var(),
    ):
        assert bits(made) == 0x7FC00000
    infinite = torch.tensor([float("inf"), -float("inf")])
    assert bits(infinite.sum()) == 0x7FC00000
    assert bits(infinite.bfloat16().sum()) == 0x7FC0
    assert bits(infinite.half().sum()) == 0x7E00
    assert bits(infinite.double().sum()) == 0x7FF8000000000000


def test_zeros_and_nothing():
    """A sum of negative zeros is +0, of nothing 0, a product of nothing 1; subnormals are kept."""
    assert bits((-torch.zeros(5)).sum()) == 0
    assert torch.ones(0, 3).sum(0).tolist() == [0, 0, 0]
    assert torch.ones(0, 3).prod(0).tolist() == [1, 1, 1]
    tiny = torch.full((20,), 1e-44)
    assert tiny.sum().item() == tiny.double().sum().float().item() > 0


def test_integers_stay_torchs_and_complex_products_are_refused():
    """Integers are summed by torch; products of complex numbers raise, with the op and the way out."""
    assert torch.arange(10).sum().item() == 45
    assert torch.arange(10).sum(dtype=torch.float32).item() == 45
    with pytest.raises(UnimplementedError, match="aten::prod of complex64"):
        torch.ones(3, dtype=torch.complex64).prod()
    assert torch.arange(10).dot(torch.arange(10)).item() == 285
    assert torch.ones(0).dot(torch.ones(0)).item() == 0
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch.ones(3).sum(2)


def test_gradients_of_reductions():
    """gradcheck: sums, products, norms, variances and distances."""
    x = numbers((4, 5), torch.float64, 3).requires_grad_()
    y = numbers((3, 5), torch.float64, 4).requires_grad_()
    check = torch.autograd.gradcheck
    for call in (
        lambda x: x.sum(0),
        lambda x: x.mean((0, 1)),
        lambda x: x.prod(1),
        lambda x: x.var(0),
        lambda x: x.norm(dim=1),
        lambda x: x.norm(1),
        lambda x: x[0].dot(x[1]),
        lambda x: torch.pdist(x),
        lambda x: torch.pdist(x, 1),
    ):
        assert check(call, (x,))
    for p in (1.0, 2.0, float("inf")):
        assert check(lambda x, y, p=p: torch.cdist(x, y, p), (x, y))


def test_shapes_types_and_strides_are_torchs():
    """Dimensions, keepdim, dtype and out= mean what they mean to torch: compared with its meta kernels."""
    x = numbers((3, 1, 70), torch.float32, 0)
    for call in (
        lambda x: x.sum(1, keepdim=True),
        lambda x: x.mean((0, 2), keepdim=True),
        lambda x: x.sum((0, 1), dtype=torch.float64),
        lambda x: torch.sum(x, 1, out=x.new_empty(0)),
        lambda x: x.bfloat16().sum(0, dtype=torch.float32),
        lambda x: torch.linalg.vector_norm(x, 1, (0, 1), dtype=torch.float64),
        lambda x: x.prod(1, keepdim=True),
        lambda x: x.var((1,)),
        lambda x: torch.var_mean(x, (0, 2))[1],
        lambda x: torch.norm(x, 2, 0, out=x.new_empty(0)),
        lambda x: x[0, 0, 0].sum(0),
        lambda x: x.sum(()),
        lambda x: x.transpose(0, 2).sum(1),
    ):
        made, expected = call(x), call(x.to("meta"))
        assert (made.shape, made.dtype, made.stride()) == (expected.shape, expected.dtype, expected.stride())
