"""Sparse tensors in optimizers, under `across="machines"`: sums in the order of stored values, and embeddings that train."""

import numpy as np
import pytest
import torch
from torch import nn

import samebits
from op_testing import numbers, over_threads, printed_elsewhere
from samebits._digest import of_value
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT
from samebits.errors import UnimplementedError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def mode():
    torch.manual_seed(0)
    with samebits.enable_op_determinism(across="machines"):
        yield


def sparse(rows, stored, width, seed):
    """A sparse tensor with rows that are stored several times."""
    indices = torch.randint(0, rows, (1, stored), generator=torch.Generator().manual_seed(seed))
    return torch.sparse_coo_tensor(indices, numbers((stored, width), torch.float32, seed), (rows, width))


def summed(start, x, alpha=1.0, order=1):
    """The definition: each value times alpha, rounded, is added in the stored order (-1: from the last one)."""
    result = start.numpy().copy()
    for row, values in [*zip(x._indices()[0].tolist(), x._values().numpy())][::order]:
        result[row] = result[row] + values * np.float32(alpha)
    return torch.from_numpy(result)


def test_a_sum_with_a_dense_tensor_is_in_the_stored_order():
    """Bit for bit, in place, of a tensor with gaps, and after coalesce; the opposite order (the control) differs."""
    dense, x = numbers((7, 5), torch.float32, 1), sparse(7, 200, 5, 2)
    expected = summed(dense, x, -0.3)
    assert torch.equal(torch.add(dense, x, alpha=-0.3), expected)
    assert torch.equal(dense.clone().add_(x, alpha=-0.3), expected)
    assert torch.equal(dense.clone().sub_(x, alpha=0.3), expected)
    gaps = numbers((5, 14), torch.float32, 1).t()[::2]
    assert torch.equal(gaps + x, summed(gaps, x))
    assert torch.equal(x.coalesce().to_dense(), summed(torch.zeros(7, 5), x))
    assert torch.equal(x.to_dense(), summed(torch.zeros(7, 5), x))
    assert not torch.equal(summed(dense, x, -0.3, order=-1), expected)


def test_many_equal_indices_are_added_in_order_on_any_number_of_threads():
    """100,000 values at 50 indices: coalesce and the sum are the definition, with 1, 2, 3 and 5 threads."""
    x = sparse(50, 100_000, 2, 3)
    seen, results = over_threads(lambda: [x.coalesce().to_dense(), torch.zeros(50, 2).add_(x)], (1, 2, 3, 5))
    assert len(seen) == 1
    expected = summed(torch.zeros(50, 2), x)
    assert torch.equal(results[0], expected) and torch.equal(results[1], expected)


def test_sparse_sums_and_multiples():
    """A sum of two stores both, and is coalesced where they were; numbers multiply the values; a mask copies."""
    x, y = sparse(7, 9, 5, 4), sparse(7, 6, 5, 5)
    total = torch.add(x, y, alpha=2)
    assert torch.equal(total._values(), torch.cat((x._values(), y._values() * 2)))
    assert (x.coalesce() + y.coalesce()).is_coalesced() and not total.is_coalesced()
    assert torch.equal((x * 0.3)._values(), x._values() * 0.3)
    assert torch.equal((0.3 * x)._values(), x._values() * 0.3)
    assert torch.equal((x / 3)._values(), x._values() / 3)
    assert torch.equal(x.clone().mul_(torch.tensor(0.3))._values(), x._values() * 0.3)
    dense, mask = numbers((7, 5), torch.float32, 6), x.coalesce()
    assert torch.equal(dense.sparse_mask(mask)._values(), dense[mask.indices()[0]])
    with pytest.raises(UnimplementedError, match=r"mul\.Tensor of sparse tensors"):
        _ = x * y


OPTIMIZERS = {
    "SparseAdam": lambda p: torch.optim.SparseAdam(p, 0.1),
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
}


def trained(make):
    """The weights of an embedding after some steps of two accumulated gradients each."""
    torch.manual_seed(0)
    embedding, target = nn.Embedding(50, 8, sparse=True), torch.randn(64, 8)
    optimizer, losses = make(embedding.parameters()), []
    for _ in range(10):
        optimizer.zero_grad()
        for _ in range(2):
            loss = (embedding(torch.randint(0, 50, (64, 3))).mean(1) - target).square().mean()
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return embedding.weight.detach()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_embeddings_train(name):
    """The weights after ten steps are near those of torch's kernels, and have the same bits over threads."""
    seen, ours = over_threads(lambda: trained(OPTIMIZERS[name]), (1, 2, 3, 5))
    with samebits.enable_op_determinism(False):
        torch.testing.assert_close(ours, trained(OPTIMIZERS[name]), rtol=1e-3, atol=1e-4)
    assert len(seen) == 1


ELSEWHERE = """
import sys; sys.path.insert(0, sys.argv[1])
import samebits, test_sparse as ours
samebits.enable_op_determinism(across="machines")
print(*(ours.of_value(ours.trained(make)) for make in ours.OPTIMIZERS.values()))
"""


def test_bits_depend_on_no_machine():
    """The weights of all optimizers are equal on a CPU with AVX2."""
    digests = [str(of_value(trained(make))) for make in OPTIMIZERS.values()]
    folder = __file__.rpartition("/")[0]
    assert printed_elsewhere("-c", ELSEWHERE, folder, **AVX2_ENVIRONMENT).split() == digests
