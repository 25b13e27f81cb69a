"""Orthogonal polynomials of NaN: torch returns memory that nobody wrote, the switch NaN."""

import math

import pytest
import torch

import samebits
from samebits.determinism._kernels.polynomials import NAMES


def values_of_nan(function):
    """The values at NaN, as texts, of all degrees from 1 on, with other memory in between; by every form of the op."""
    found = set()
    for number in range(6):
        _held = [torch.full((size,), 7.0 * number) for size in (40, 100, 1000)]
        for dtype in (torch.float32, torch.float64):
            x = torch.full((40,), math.nan, dtype=dtype)
            for degree in (1, 2, 3, 7, 30):
                found |= {*map(repr, function(x, torch.full((40,), float(degree), dtype=dtype)).tolist())}
                found |= {*map(repr, function(x, degree).tolist())}
                found |= {
                    *map(repr, function(math.nan, torch.full((40,), float(degree), dtype=dtype)).tolist())
                }
            out = torch.empty(40, dtype=dtype)
            found |= {*map(repr, function(x, torch.full((40,), 4.0, dtype=dtype), out=out).tolist())}
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_polynomial_of_nan_is_nan(name):
    """NaN from degree 1 on, in every form; of degree 0 it is 1, of a negative one 0; other numbers keep torch's bits."""
    function = getattr(torch.special, name)
    x, degrees = torch.linspace(-3, 3, 101), torch.arange(101) % 9 - 1
    plain = function(x, degrees), function(x, 3), function(2.5, degrees), function(x.int(), degrees)
    with samebits.enable_op_determinism():
        assert values_of_nan(function) == {"nan"}
        assert function(torch.tensor([math.nan] * 2), torch.tensor([0, -1])).tolist() == [1.0, 0.0]
        ours = function(x, degrees), function(x, 3), function(2.5, degrees), function(x.int(), degrees)
    for mine, torchs in zip(ours, plain, strict=True):
        assert mine.dtype == torchs.dtype and mine.equal(torchs)


def test_torch_returns_other_values_for_nan():
    """Negative control: without the switch at least one of the family returns numbers for NaN."""
    assert any(values_of_nan(getattr(torch.special, name)) != {"nan"} for name in NAMES)
