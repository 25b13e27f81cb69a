"""log gamma, digamma and trigamma under `across="machines"`: the nearest float32, near 40 digits in float64, right gradients."""

import math

import mpmath
import pytest
import torch

import samebits
from samebits.errors import UnimplementedError

pytestmark = pytest.mark.slow


def trigamma(x):
    return torch.polygamma(1, x)


@pytest.fixture(autouse=True)
def mode():
    torch.manual_seed(0)
    with samebits.enable_op_determinism(across="machines"):
        yield


@pytest.mark.parametrize("function", (torch.lgamma, torch.digamma, trigamma))
def test_float32_is_the_nearest_number(function):
    """Of 100,000 numbers on each side of 0 none is off by more than the rounding of the result in float64."""
    for x in (torch.rand(100_000) * 30, -torch.rand(100_000) * 20, torch.rand(100_000).mul(80).sub(40).exp()):
        exact, seen = function(x.double()), function(x)
        assert ((seen != exact.float()) & ~exact.isnan()).sum() <= 1


EXACT = {
    torch.lgamma: lambda x: mpmath.log(abs(mpmath.gamma(x))),
    torch.digamma: mpmath.digamma,
    trigamma: lambda x: mpmath.polygamma(1, x),
}


@pytest.mark.parametrize("function", EXACT)
def test_float64_is_within_some_units(function):
    """The error, in units of the result or of 1 where that is smaller, is below 6 * 2^-52 (torch's trigamma: 10^5)."""
    x = torch.rand(1000, dtype=torch.float64) * 30 - 15
    with mpmath.workdps(40):
        pairs = [*zip(function(x).tolist(), map(EXACT[function], map(mpmath.mpf, x.tolist())), strict=True)]
        worst = max(abs(one - exact) / max(1, abs(exact)) for one, exact in pairs)
        assert worst < 6 * 2.0**-52
        assert (
            max(abs(one * (1 + 2.0**-48) - exact) / max(1, abs(exact)) for one, exact in pairs) > 6 * 2.0**-52
        )


def test_special_values_are_torchs():
    """Zeros, negative integers, infinities and NaN; where log gamma is 0 it is exactly 0."""
    x = torch.tensor([0.0, -0.0, -1, -7, math.inf, math.nan, 1e300, 1, 2])
    for function in (torch.lgamma, torch.digamma):
        seen = function(x.double())
        with samebits.enable_op_determinism(False):
            torch.testing.assert_close(seen, function(x.double()), rtol=4e-15, atol=0, equal_nan=True)
    assert torch.lgamma(torch.tensor([1.0, 2.0])).tolist() == [0, 0]
    assert torch.lgamma(torch.tensor([-math.inf])).item() == math.inf


def test_gradients():
    """gradcheck of log gamma, and twice; the third derivative is refused by name."""
    x = torch.tensor([0.3, 1.2, 4.5, -0.7, 20.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(torch.lgamma, (x,)) and torch.autograd.gradgradcheck(torch.lgamma, (x,))
    assert torch.equal(torch.polygamma(0, x), x.digamma())
    with pytest.raises(UnimplementedError, match="polygamma of order 2"):
        torch.polygamma(2, x)
