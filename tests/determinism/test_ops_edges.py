"""Arguments at the edge, where kernels of samebits must do what torch's do: zeros, huge and tiny numbers, wrong arguments."""

import pytest
import torch
from torch import tensor

import samebits


@pytest.fixture(autouse=True)
def machines():
    with samebits.enable_op_determinism(across="machines"):
        yield


def gradient(function, x):
    x = x.requires_grad_()
    return torch.autograd.grad(function(x).sum(), x)[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_slope_of_gelu_at_either_zero_is_a_half(dtype):
    """0.5 at +0, at -0 and at numbers that are almost zero."""
    assert (
        gradient(torch.nn.functional.gelu, tensor([0.0, -0.0, 1e-30, -1e-30], dtype=dtype)).tolist()
        == [0.5] * 4
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_slope_of_silu_far_out_is_one_or_zero(dtype):
    """1 above, 0 below, however far; NaN at infinity, as torch's."""
    found = gradient(
        torch.nn.functional.silu, tensor([50.0, 1e12, 3e38, -1e12, -3e38, float("inf")], dtype=dtype)
    )
    assert found[:5].tolist() == [1, 1, 1, 0, 0] and found[5].isnan()


@pytest.mark.parametrize("lost", [float("nan"), float("inf")])
def test_qr_of_what_is_not_finite_is_not_finite(lost):
    """NaN and infinity are seen in R: a diverged matrix does not become an identity."""
    assert not torch.linalg.qr(tensor([[lost, 1.0], [1.0, 2.0]]))[1].isfinite().all()


def test_qr_reflects_columns_whose_squares_underflow():
    """Numbers of 1e-200 beside numbers of 1: R has their norm, and Q R is the matrix."""
    matrix = tensor([[1.0, 0.0], [0.0, 1e-200], [0.0, 1e-200]], dtype=torch.float64)
    q, r = torch.linalg.qr(matrix)
    assert abs(abs(r[1, 1].item()) / 1e-200 - 2**0.5) < 1e-15 and (q @ r - matrix).abs().max() < 1e-215


def test_small_concentrations_give_no_nan():
    """Gamma draws that underflow count as the smallest normal number, as in torch: Dirichlet and Beta draws are finite."""
    samebits.set_random_seed(0)
    assert torch._sample_dirichlet(torch.full((100, 4), 1e-4)).isfinite().all()
    assert torch.distributions.Beta(tensor(1e-3), tensor(1e-3)).sample((5000,)).isfinite().all()


def test_binomial_draws_of_tiny_probabilities_end():
    """Probabilities below the rounding of 1 - p: no success; the mean of a count of 1e15 at 1e-15 is about 1."""
    torch.manual_seed(0)
    assert torch.binomial(tensor([10.0]), tensor([1e-17])) == 0
    count = torch.full((4000,), 1e15, dtype=torch.float64)
    assert abs(torch.binomial(count, torch.full_like(count, 1e-15)).mean() - 1) < 0.06


def test_real_numbers_near_the_largest_have_a_transform():
    """No sum of halves overflows: the transform of one number is that number."""
    assert torch.fft.rfft(tensor([1.8e38, 0, 0, 0])).real.tolist() == [tensor(1.8e38).item()] * 3


A, ONES = torch.eye(3), torch.ones(3, 1)
REFUSED = {
    "pivots that are too large": (
        lambda: torch.linalg.lu_solve(A, tensor([1, 9, 3], dtype=torch.int32), ONES),
        "Pivots",
    ),
    "pivots of zero": (
        lambda: torch.linalg.lu_solve(A, tensor([0, 2, 3], dtype=torch.int32), ONES),
        "Pivots",
    ),
    "LU without pivots": (lambda: torch.linalg.lu(A, pivot=False), "not implemented on the CPU"),
    "a short tau": (lambda: torch.ormqr(A, torch.ones(2), A), "tau"),
    "integers plus sparse reals, in place": (lambda: tensor([1, 2]).add_(sparse(0.7)), "can't be cast"),
    "integers times a real": (lambda: tensor([1, 2]).add(sparse(1), alpha=0.5), "alpha"),
    "a number by a sparse tensor": (lambda: torch.div(2.0, sparse(4.0)), "sparse"),
}


def sparse(value):
    return torch.sparse_coo_tensor(tensor([[0]]), tensor([value]), (2,))


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_refused(name):
    """What torch refuses raises here, too, and nothing is written beyond a buffer."""
    call, text = REFUSED[name]
    with pytest.raises(RuntimeError, match=text):
        call()


@pytest.mark.parametrize("value", [0.7, 1j])
@pytest.mark.parametrize("dense", [torch.zeros(2, dtype=torch.int64), torch.ones(2)])
def test_a_sum_with_a_sparse_tensor_has_the_wider_type(dense, value):
    """The type and the values of the dense sum."""
    found, there = dense + sparse(value), dense + sparse(value).to_dense()
    assert found.dtype == there.dtype and torch.equal(found, there)


def test_sparse_tensors_without_elements_are_added():
    """Rows of no numbers: shapes are kept."""
    rows = torch.sparse_coo_tensor(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(2, 0), (3, 0))
    assert (torch.ones(3, 0) + rows).shape == (3, 0)
