"""Numbers of samebits.random follow their distributions, tails and pairs included; impostors are told apart.

A check returns by how many standard deviations its worst statistic is off. All keys are fixed: nothing here is left to
chance.
"""

import math

import numpy as np
import pytest
import torch

import samebits.random as sr
from samebits.random import _int_keys as int_keys

PASS, FAIL = 5.0, 10.0
"""5 sigma: 6e-7 for one statistic. What is broken lies far above."""

pytestmark = pytest.mark.usefixtures("one_thread")
"""Sorting and sums on many small tensors: threads would only wait for each other."""


def root(name):
    return int_keys.to_tensor(int_keys.fold(int_keys.root(1), "quality", name))


def normal_density(x):
    return torch.exp(-x * x / 2) / math.sqrt(math.tau)


def ndtr(x):
    return torch.special.ndtr(x)


WITHIN = (ndtr(torch.tensor([-2.0, 1.0], dtype=torch.float64)) * torch.tensor([-1.0, 1.0])).sum()
# The probability below x and above x, the density, and where it is not negligible.
DISTRIBUTIONS = {
    "uniform": (lambda x: x, lambda x: 1 - x, torch.ones_like, 0, 1),
    "normal": (ndtr, lambda x: ndtr(-x), normal_density, -12, 12),
    "exponential": (lambda x: -torch.expm1(-x), lambda x: torch.exp(-x), lambda x: torch.exp(-x), 0, 80),
    "gumbel": (
        lambda x: torch.exp(-torch.exp(-x)),
        lambda x: -torch.expm1(-torch.exp(-x)),
        lambda x: torch.exp(-x - torch.exp(-x)),
        -6,
        80,
    ),
    "truncated_normal": (
        lambda x: (ndtr(x) - ndtr(torch.full_like(x, -2))) / WITHIN,
        lambda x: (ndtr(torch.ones_like(x)) - ndtr(x)) / WITHIN,
        lambda x: normal_density(x) / WITHIN,
        -2,
        1,
    ),
}
BOUNDS = {"truncated_normal": {"low": -2.0, "high": 1.0}}


def distribution_differs(name, drawn):
    """Kolmogorov and Smirnov's distance, the first four moments, and the numbers in both tails down to 16 in all.

    Of the distance, 2 sqrt(n) D: the tail of its distribution is about that of a normal number.
    """
    below, above, density, low, high = DISTRIBUTIONS[name]
    x, n = drawn.double().sort().values, drawn.numel()
    steps = torch.arange(1, n + 1, dtype=torch.float64) / n
    cdf, worst = below(x), 0.0
    worst = max(worst, 2 * math.sqrt(n) * float(torch.maximum(steps - cdf, cdf - steps + 1 / n).max()))
    for tail in (cdf, above(x)):
        for halvings in range(3, 21):
            if (expected := n / 2**halvings) >= 16:
                worst = max(worst, abs(int((tail < 2.0**-halvings).sum()) - expected) / math.sqrt(expected))
    points = 100_000
    grid = low + (torch.arange(points, dtype=torch.float64) + 0.5) * (high - low) / points
    for power in range(1, 5):
        exact = float((grid**power * density(grid)).sum() * (high - low) / points)
        of = x**power
        worst = max(worst, abs(float(of.mean()) - exact) * math.sqrt(n) / float(of.std()))
    return worst


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(name, dtype):
    """The numbers of each distribution have its distribution function, its moments and its tails."""
    drawn = getattr(sr, name)(root(name), 2**19, dtype=dtype, **BOUNDS.get(name, {}))
    assert distribution_differs(name, drawn) < PASS


def test_other_distributions_are_found():
    """Uniform numbers to the power 1.05, a sum of 6 uniforms for a normal one, exponential ones cut at 6, clamped normal numbers."""
    n, key = 2**19, root("other")
    uniform, normal = sr.uniform(key, n, dtype=torch.float64), sr.normal(key, n, dtype=torch.float64)
    exponential = -torch.log1p(-uniform)
    for name, drawn in (
        ("uniform", uniform**1.05),
        ("uniform", uniform.clamp(min=1e-3)),
        ("normal", (sr.uniform(key, 6, n, dtype=torch.float64).sum(0) - 3) * math.sqrt(2)),
        ("normal", normal * 1.02),
        ("exponential", exponential.clamp(max=6)),
        ("gumbel", torch.log(exponential)),
        ("truncated_normal", normal.clamp(-2, 1)),
    ):
        assert distribution_differs(name, drawn) > FAIL, name


def tails_differ(z):
    """The numbers beyond 3 to 5, and the kurtosis, of normal numbers."""
    beyond = torch.tensor([3.0, 3.5, 4.0, 4.5, 5.0])
    expected = 2 * ndtr(-beyond.double()) * z.numel()
    counts = torch.stack([(z.abs() > bound).sum() for bound in beyond])
    kurtosis = abs(float((z.double() ** 4).mean()) - 3) / math.sqrt(96 / z.numel())
    return max(kurtosis, float(((counts - expected).abs() / expected.sqrt()).max()))


@pytest.mark.slow
def test_tails_of_normal():
    """Of 2**24 normal numbers as many are beyond 3, ..., 5 as should be, and the largest is plausible.

    Negative control: Box-Muller on 10 bits, which ends at 3.9.
    """
    z = sr.normal(root("tails"), 2**24)
    assert tails_differ(z) < PASS
    # 1 in 14,000 to be below, 1 in 1,400 to be above: the words end at 6.8
    assert 5.0 < float(z.abs().max()) < 6.6
    u, v = (sr.bits(root("coarse"), 2, 2**22, dtype=torch.uint16).int() // 2**6 + 0.5).double() / 2**10
    assert tails_differ(torch.sqrt(-2 * torch.log(u)) * torch.cos(math.tau * v)) > FAIL


def pairs_differ(z):
    """The two numbers of each Box-Muller pair: correlations of them, sizes, squares; radius and angle."""
    a, b = z.double().view(-1, 2).T.numpy()
    angle, half_square = (torch.from_numpy(x) for x in (np.arctan2(b, a) / math.tau % 1, (a * a + b * b) / 2))
    correlations = [
        np.corrcoef(f(a), f(b))[0, 1] * math.sqrt(a.size) for f in (np.array, np.abs, np.square, np.exp)
    ]
    return max(
        np.abs(correlations).max(),
        distribution_differs("uniform", angle),
        distribution_differs("exponential", half_square),
    )


@pytest.mark.first_case_quick
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pairs_of_normals_are_independent(dtype):
    """The cosine and the sine member of a pair are independent; with equal sizes and own signs they are not."""
    z = sr.normal(root("pairs of normals"), 2**21, dtype=dtype)
    assert pairs_differ(z) < PASS
    equal = z.view(-1, 2).clone()
    equal[:, 1] = equal[:, 0].abs() * equal[:, 1].sign()
    assert pairs_differ(equal) > FAIL
