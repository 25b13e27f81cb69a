"""Arithmetic of complex numbers under `across="machines"`: by stated formulas, near torch's, with right gradients."""

import cmath

import pytest
import torch

import samebits
from definitions import complex_parts
from op_testing import numbers, over_threads, printed_elsewhere
from samebits._digest import of_value
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT

pytestmark = pytest.mark.slow
TYPES = (torch.complex64, torch.complex128)


@pytest.fixture(autouse=True)
def mode():
    torch.manual_seed(0)
    with samebits.enable_op_determinism(across="machines"):
        yield


def drawn(shape, dtype, seed):
    return torch.complex(numbers(shape, dtype.to_real(), seed), numbers(shape, dtype.to_real(), seed + 100))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", ("mul", "div"))
def test_products_and_quotients_are_the_definition(name, dtype):
    """Bit for bit, at every length, in any layout, in place and into `out`; a fused one (the control) differs."""
    x, y = (drawn((1001,), dtype, seed) for seed in (0, 1))
    expected = torch.complex(
        *(torch.from_numpy(one).to(dtype.to_real()) for one in complex_parts(name, x, y))
    )
    op, out = getattr(torch, name), torch.empty_like(x)
    for length in (1, 2, 3, 7, 8, 9, 31, 1001):
        assert torch.equal(op(x[:length], y[:length]), expected[:length])
    assert torch.equal(op(x, y, out=out), expected) and torch.equal(
        getattr(x.clone(), f"{name}_")(y), expected
    )
    assert torch.equal(op(x[::2], y[::2]), expected[::2])
    assert torch.equal(
        op(x[:1000].view(50, 20).t(), y[:1000].view(50, 20).t()), expected[:1000].view(50, 20).t()
    )
    fused = x.real.double() * y.real.double() - (x.imag * y.imag).double()
    assert name == "div" or dtype == torch.complex128 or not torch.equal(fused.float(), expected.real)


CALLS = {
    "numbers": lambda x, y, z: (x * 2.5, 3j * x, x / 3, 1 / x, x.reciprocal(), x - 2j * y.real, x**2, x**1),
    "scaled": lambda x, y, z: (torch.add(x, y, alpha=2j), torch.sub(x, y, alpha=0.3), torch.rsub(x, y, alpha=3)),
    "addc": lambda x, y, z: (torch.addcmul(x, y, z, value=0.3), torch.addcdiv(x, y, z, value=-2j)),
    "lerp": lambda x, y, z: (x.lerp(y, 0.3), x.lerp(y, z)),
    "parts": lambda x, y, z: (x.abs(), x.angle(), x.sgn(), torch.polar(x.abs(), y.real), x.exp(), x.conj() * y),
    "sums": lambda x, y, z: (x.sum(0), x.mean(), x.dot(y), x.vdot(y), torch.linalg.vector_norm(x), x.norm()),
    "products": lambda x, y, z: (
        x.view(-1, 20) @ y.view(20, -1),
        torch.addmm(y[:9].view(3, 3), x[:12].view(3, 4), z[:12].view(4, 3).mH.mT, beta=2, alpha=0.5j),
        torch.einsum("bij,bjk->bik", x.view(5, -1, 4), y.view(5, 4, -1)),
        x.view(-1, 20) @ y[:20],
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CALLS)
def test_results_are_as_near_as_torchs(name, dtype):
    """To complex128, with at most twice torch's own error in complex64; and the layout and type are torch's."""
    operands = [drawn((200,), dtype, seed) for seed in range(3)]
    ours = CALLS[name](*operands)
    with samebits.enable_op_determinism(False):
        torchs = CALLS[name](*operands)
        exact = CALLS[name](*(x.to(torch.complex128) for x in operands))
    for one, theirs, true in zip(ours, torchs, exact, strict=True):
        assert (one.dtype, one.shape, one.stride()) == (theirs.dtype, theirs.shape, theirs.stride())
        errors = [(each - true).abs().max().item() for each in (one, theirs)]
        assert errors[0] <= 2 * errors[1] + 4 * torch.finfo(dtype).eps * true.abs().max().item()


def test_gradients():
    """gradcheck of each operation, of complex and of real operands, and twice for products."""
    x, y = (drawn((4,), torch.complex128, seed).requires_grad_() for seed in (0, 1))
    r = numbers((4,), torch.float64, 3).requires_grad_()
    for compute in (
        torch.mul, torch.div, lambda x, y: x.abs() + y.angle(), lambda x, y: x.exp() * y.sgn(),
        lambda x, y: x.view(2, 2) @ y.view(2, 2), lambda x, y: (x**2).sum() / y.mean(), torch.vdot,
    ):  # fmt: skip
        assert torch.autograd.gradcheck(compute, (x, y))
    assert torch.autograd.gradcheck(lambda x, r: x * r / (r * r + 1), (x, r))
    assert torch.autograd.gradcheck(lambda r: torch.polar(r * r + 1, r), (r,))
    assert torch.autograd.gradgradcheck(torch.mul, (x, y))


def test_special_values():
    """By zero it is infinite or NaN; a finite number by infinity is 0; exp keeps a zero imaginary part; sgn(0) = 0."""
    x = torch.tensor([1 + 1j, 0j, 1 + 2j], dtype=torch.complex64)
    y = torch.tensor([0j, 0j, complex("inf")], dtype=torch.complex64)
    seen = (x / y).tolist()
    assert cmath.isinf(seen[0]) and cmath.isnan(seen[1]) and seen[2] == 0
    assert torch.tensor([complex("inf"), 0j]).exp().tolist() == [complex("inf"), 1]
    assert torch.zeros(1, dtype=torch.complex64).sgn().tolist() == [0]


def digests():
    """The digest of each family in each type, forward and backward, with a length that several threads share."""
    found = []
    for dtype in TYPES:
        operands = [drawn((40_000,), dtype, seed).requires_grad_() for seed in range(3)]
        for name, call in CALLS.items():
            few = [x[:2000] if name == "products" else x for x in operands]
            results = call(*few)
            sum(
                torch.view_as_real(one).sum() if one.is_complex() else one.sum() for one in results
            ).backward()
            found += [
                of_value([one.detach().resolve_conj() for one in results]),
                of_value([x.grad for x in operands]),
            ]
    return [*map(str, found)]


ELSEWHERE = """
import sys; sys.path.insert(0, sys.argv[1])
import samebits, test_arithmetic_complex as ours
samebits.enable_op_determinism(across="machines")
print(*ours.digests())
"""


def test_bits_depend_on_no_thread_and_no_machine():
    """All results and gradients are equal at 1, 2, 3 and 5 threads and on a CPU with AVX2."""
    seen, ours = over_threads(digests, (1, 2, 3, 5))
    assert len(seen) == 1 and len({*ours}) > 20
    folder = __file__.rpartition("/")[0]
    assert printed_elsewhere("-c", ELSEWHERE, folder, **AVX2_ENVIRONMENT).split() == ours
