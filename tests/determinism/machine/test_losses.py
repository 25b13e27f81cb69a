"""ctc_loss, logcumsumexp and weight_norm under `across="machines"`: near float64, with right gradients."""

import pytest
import torch
import torch.nn.functional as F

from op_testing import numbers, replaced
from samebits.determinism._ops import losses, sums, vector_norms

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def ours():
    with replaced(losses, vector_norms, sums):
        yield


def alignments(log_p, target, blank=0):
    """-log of the probability of a target, by trying every path."""
    import itertools

    times, classes = log_p.shape
    total = []
    for path in itertools.product(range(classes), repeat=times):
        kept = [c for i, c in enumerate(path) if i == 0 or path[i - 1] != c]
        if [c for c in kept if c != blank] == target:
            total.append(sum(log_p[t, c] for t, c in enumerate(path)))
    return -torch.logsumexp(torch.stack(total), 0) if total else torch.tensor(float("inf"), dtype=log_p.dtype)


@pytest.mark.parametrize("flat", (False, True))
def test_ctc_loss_is_the_sum_over_all_paths(flat):
    """The loss of each item is that of every path that collapses to its target; a target that does not fit is infinite."""
    log_p = numbers((5, 4, 3), torch.float64, 0).log_softmax(2)
    targets = [[1, 2], [1, 1], [2], [1, 2, 1]]
    lengths = [len(target) for target in targets]
    padded = torch.tensor([target + [1] * (3 - len(target)) for target in targets])
    target = torch.cat([torch.tensor(one) for one in targets]) if flat else padded
    seen = F.ctc_loss(log_p.float(), target, [5, 5, 4, 2], lengths, reduction="none")
    expected = torch.stack([alignments(log_p[:t, b], targets[b]) for b, t in enumerate((5, 5, 4, 2))])
    torch.testing.assert_close(seen, expected.float(), rtol=1e-6, atol=1e-6)
    assert seen[3] == float("inf")
    zero = F.ctc_loss(log_p.float(), target, [5, 5, 4, 2], lengths, reduction="none", zero_infinity=True)
    assert zero[3] == 0


def test_gradients_of_other_losses():
    """gradcheck: ctc_loss (through log_softmax, which its gradient takes for granted), logcumsumexp and weight_norm."""
    x, target = numbers((6, 2, 4), torch.float64, 1).requires_grad_(), torch.tensor([[1, 2], [3, 3]])
    check = torch.autograd.gradcheck
    assert check(lambda x: F.ctc_loss(x.log_softmax(2), target, (6, 5), (2, 2), reduction="none"), (x,))
    assert check(lambda x: x.logcumsumexp(1), (x,))
    g = numbers((6, 1, 1), torch.float64, 2).requires_grad_()
    assert check(lambda v, g: torch._weight_norm(v, g, 0), (x, g))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_logcumsumexp_is_rounded_once(dtype):
    """It is the value in float64, rounded to the type, over any dimension; infinities and NaN are torch's."""
    x = numbers((7, 30, 3), dtype, 0)
    for dim in (0, 1, 2):
        exact = x.double().exp().cumsum(dim).log()
        assert (x.logcumsumexp(dim) - exact).abs().max() <= torch.finfo(dtype).eps * exact.abs().max()
    inf = float("inf")
    assert torch.tensor([-inf, 1.0, inf, 2.0]).logcumsumexp(0).tolist() == [-inf, 1, inf, inf]
    assert torch.tensor([1.0, float("nan")]).logcumsumexp(0).view(torch.int32)[1].item() == 0x7FC00000
