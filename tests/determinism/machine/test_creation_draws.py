"""Gamma, Dirichlet, Poisson and binomial draws: their distributions, their bits, what they take from the generator."""

import math

import pytest
import torch
from scipy import special, stats

import samebits
from op_testing import over_threads, printed_elsewhere
from samebits._digest import of_value
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT

pytestmark = pytest.mark.slow
COUNT = 100_000
LEAST = 1e-6
"""The smallest probability of a statistic that passes; all seeds are fixed."""


@pytest.fixture(autouse=True)
def mode():
    with samebits.enable_op_determinism(across="machines"):
        yield


def filled(*numbers, count=COUNT):
    return [torch.full((count,), float(number), dtype=torch.float64) for number in numbers]


def probability(draws, distribution):
    """The probability of draws that are as far from a distribution: Kolmogorov and Smirnov's, or chi-square of counts."""
    if not hasattr(distribution.dist, "pmf"):
        return stats.kstest(draws.numpy(), distribution.cdf).pvalue
    edges = sorted({distribution.ppf(q) for q in torch.linspace(0.02, 0.95, 25).tolist()})
    below = torch.tensor([0.0, *(distribution.cdf(edge) for edge in edges), 1.0]).diff()
    seen = torch.tensor([0.0, *((draws <= edge).double().mean() for edge in edges), 1.0]).diff()
    kept = below > 1e-4
    return stats.chi2.sf(float((len(draws) * (seen - below) ** 2 / below)[kept].sum()), int(kept.sum()) - 1)


CASES = {
    **{
        f"gamma {a}": (torch._standard_gamma, filled(a), stats.gamma(a), stats.gamma(1.03 * a))
        for a in (0.01, 0.3, 1, 2.5, 50)
    },
    **{
        f"poisson {a}": (torch.poisson, filled(a), stats.poisson(a), stats.poisson(1.05 * a))
        for a in (0.5, 9.5, 10, 300)
    },
    **{
        f"binomial {n} {p}": (torch.binomial, filled(n, p), stats.binom(n, p), stats.binom(n, 1.05 * p))
        for n, p in ((1, 0.5), (30, 0.7), (40, 0.4), (1000, 0.9))
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_draws_follow_their_distribution(case):
    """They pass a test of the distribution, which sees (the control) a parameter that is 3 or 5 % larger."""
    draw, parameters, distribution, impostor = CASES[case]
    torch.manual_seed(3)
    draws = draw(*parameters)
    assert probability(draws, distribution) > LEAST > probability(draws, impostor)


def test_parts_of_a_dirichlet_draw_are_beta_draws():
    """Each part of Dirichlet (0.5, 2, 3) is Beta(a, 5.5 - a), and the parts add up to 1; another Beta is seen."""
    torch.manual_seed(1)
    draws = torch._sample_dirichlet(torch.tensor([0.5, 2, 3], dtype=torch.float64).expand(COUNT, 3))
    assert (draws.sum(-1) - 1).abs().max() < 1e-15
    for part, a in zip(draws.unbind(-1), (0.5, 2, 3)):
        assert probability(part, stats.beta(a, 5.5 - a)) > LEAST > probability(part, stats.beta(a, 5.3 - a))


def draws_and_gradients(dtype):
    """Draws with parameters from 0.01 to 100, and their gradients."""
    torch.manual_seed(7)
    a = torch.linspace(-2, 2, 3000, dtype=torch.float64).mul(math.log(10)).exp().to(dtype).requires_grad_()
    draws = [torch.distributions.Gamma(a, 1 / a).rsample(), torch.distributions.Beta(a, a.flip(0)).rsample()]
    draws.append(torch.distributions.Dirichlet(a.view(-1, 3)[:, 1:]).rsample())
    sum(draw.sum() for draw in draws).backward()
    counts = [torch.poisson(a.detach()), torch.binomial(a.detach().round(), a.detach() / 101)]
    return [*(draw.detach() for draw in draws), a.grad, *counts]


ELSEWHERE = """
import sys; sys.path.insert(0, sys.argv[1])
import torch, samebits, test_creation_draws as ours
samebits.set_random_seed(1)
samebits.enable_op_determinism(across="machines")
print(*(ours.of_value(ours.draws_and_gradients(dtype)) for dtype in (torch.float32, torch.float64)))
"""


def test_bits_depend_on_no_thread_and_no_machine():
    """Draws and gradients have one result at 1, 2, 3 and 5 threads and on a CPU with AVX2; another seed has others."""
    digests = []
    for dtype in (torch.float32, torch.float64):
        seen, _ = over_threads(lambda dtype=dtype: draws_and_gradients(dtype), (1, 2, 3, 5))
        assert len(seen) == 1
        digests += seen
    folder = __file__.rpartition("/")[0]
    assert printed_elsewhere("-c", ELSEWHERE, folder, **AVX2_ENVIRONMENT).split() == [*map(str, digests)]
    torch.manual_seed(8)
    assert of_value(torch.poisson(torch.ones(9))) != of_value(torch.poisson(torch.ones(9)))


@pytest.mark.parametrize("draw", (torch._standard_gamma, torch._sample_dirichlet, torch.poisson))
def test_a_call_takes_one_integer_from_the_generator(draw):
    """Whatever is drawn, the generator goes on by the integer that `random_` takes; for no elements it stays."""
    generator, other = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    draw(torch.full((1000,), 0.3), generator=generator)
    assert not torch.equal(generator.get_state(), other.get_state())
    torch.empty((), dtype=torch.int64).random_(generator=other)
    assert torch.equal(generator.get_state(), other.get_state())
    draw(torch.ones(0, 3), generator=generator)
    assert torch.equal(generator.get_state(), other.get_state())


def test_an_element_names_no_other():
    """Element i has the same bits whatever the others' parameters are, and in any memory layout."""
    a = torch.rand(50, 40, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 4
    changed = a.clone()
    changed[:, ::2] = 0.001
    for draw in (torch._standard_gamma, torch.poisson):
        draws = [draw(x, generator=torch.Generator().manual_seed(2)) for x in (a, changed, a.t().clone().t())]
        assert torch.equal(draws[0][:, 1::2], draws[1][:, 1::2]) and torch.equal(draws[0], draws[2])
        assert not torch.equal(draws[0], draws[1])


def of_gamma(a, x):
    """-(dF/da) / f, by a difference of F."""
    h = 1e-5 * a
    slope = (special.gammainc(a + h, x) - special.gammainc(a - h, x)) / (2 * h)
    return -slope / stats.gamma.pdf(x, a)


def of_beta(a, b, x):
    h = 1e-5 * a
    return -(special.betainc(a + h, b, x) - special.betainc(a - h, b, x)) / (2 * h) / stats.beta.pdf(x, a, b)


def test_gradients_of_draws_are_as_near_as_torchs():
    """Implicit gradients of Gamma and Beta are within 0.2 % of differences of F, and at most twice torch's own error."""
    torch.manual_seed(2)
    a, b = (torch.rand(2, 2000, dtype=torch.float64) * 6 - 2).exp()
    x = torch._standard_gamma(a)
    kept = (x > 1e-3) & (x < a + 3 * a.sqrt() + 2)
    y = torch._sample_dirichlet(torch.stack((a, b), -1))[:, 0]
    inside = (y > 1e-2) & (y < 0.99)
    gamma, beta = torch._standard_gamma_grad(a, x), torch._dirichlet_grad(y, a, a + b) * (1 - y)
    with samebits.enable_op_determinism(False):
        torchs = torch._standard_gamma_grad(a, x), torch._dirichlet_grad(y, a, a + b) * (1 - y)
    for ours, theirs, exact, where in (
        (gamma, torchs[0], of_gamma(a.numpy(), x.numpy()), kept),
        (beta, torchs[1], of_beta(a.numpy(), b.numpy(), y.numpy()), inside),
    ):
        error, torch_error = (
            (each / torch.from_numpy(exact) - 1)[where].abs().max() for each in (ours, theirs)
        )
        assert error < 2e-3 and error <= 2 * torch_error


def test_wrong_parameters_are_torchs_errors():
    """A negative rate, integers, and shapes that differ raise as in torch; NaN stays NaN, and 0 is a draw of 0."""
    torch.manual_seed(0)
    with pytest.raises(RuntimeError, match="rate"):
        torch.poisson(torch.tensor([-1.0]))
    with pytest.raises(RuntimeError, match="not implemented for 'Long'"):
        torch._standard_gamma(torch.ones(2, dtype=torch.int64))
    assert torch._standard_gamma(torch.tensor([math.nan])).isnan().all()
    assert torch.poisson(torch.zeros(3)).tolist() == [0, 0, 0]
    assert torch.binomial(torch.tensor([4.0, 4.0, 0.0]), torch.tensor([0.0, 1.0, 0.5])).tolist() == [0, 4, 0]
