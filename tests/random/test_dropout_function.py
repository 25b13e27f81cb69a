"""`dropout`: the mask is that of the key, forward, backward, twice, and as a tangent."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import samebits.random as sr
from samebits.errors import InvalidArgumentError

KEY = sr.key(11)
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def expected(x, p):
    """What F.dropout computes with the mask of the key: times 1 / (1 - p) in the input's dtype, or times 0."""
    kept = 1 - sr.bernoulli(KEY, x.shape, p=p, dtype=x.dtype)
    return x * kept.div_(1 - p)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("p", [0.01, 0.3, 0.5, 0.9])
def test_it_is_torchs_with_the_mask_of_the_key(dtype, p):
    """Every bit is that of F.dropout's arithmetic on the mask of bernoulli(key): infinities, NaN and signed zeros too."""
    x = sr.normal(sr.key(2), 37, 101, dtype=dtype)
    x[0, :4] = torch.tensor([math.inf, -math.inf, 0.0, -0.0])
    drawn = sr.dropout(KEY, x, p)
    assert torch.equal(drawn.nan_to_num(7.0), expected(x, p).nan_to_num(7.0))
    assert torch.equal(drawn.signbit(), expected(x, p).signbit()) or drawn.isnan().any()
    assert not torch.equal(drawn, sr.dropout(sr.key(12), x, p))
    torch.manual_seed(0)
    theirs = F.dropout(torch.ones(999, dtype=dtype), p)
    ours = sr.dropout(KEY, torch.ones(999, dtype=dtype), p)
    assert ours.unique().tolist()[-1] == theirs.unique().tolist()[-1]


@pytest.mark.parametrize("p", [0.0, 1.0])
@pytest.mark.parametrize("inplace", [False, True])
def test_the_ends_are_torchs(p, inplace):
    """p = 0 is the input itself and p = 1 is zero, with torch's gradients; so is an input in evaluation."""
    for training in (True, False):
        results = []
        for drop in (lambda *args: sr.dropout(KEY, *args), F.dropout):
            leaf = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
            x = leaf * 1
            y = drop(x, p, training, inplace)
            y.sum().backward()
            results.append((y.detach(), leaf.grad, y is x))
        (a, da, ia), (b, db, ib) = results
        assert torch.equal(a, b) and torch.equal(da, db) and ia == ib


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("inplace", [False, True])
def test_backward_draws_the_mask_of_forward(dtype, inplace):
    """The gradient is dropped and scaled as the input was, in place too; nothing but the key is saved."""
    saved = []
    leaf = torch.ones(50, 70, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (saved.append(t.shape), t)[1], lambda t: t):
        x = leaf + 0
        y = sr.dropout(KEY, x, 0.3, inplace=inplace)
    assert (y is x) == inplace
    y.backward(torch.ones_like(y))
    assert torch.equal(leaf.grad, expected(torch.ones_like(y), 0.3)) and torch.equal(leaf.grad, y.detach())
    assert set(saved) <= {torch.Size([2])}


def test_gradients_of_gradients_and_tangents():
    """Checks by finite differences, forward mode and double backward; a mask of another key in backward fails them."""
    x = sr.normal(sr.key(3), 4, 5, dtype=torch.float64).requires_grad_()
    weight = sr.normal(sr.key(4), 4, 5, dtype=torch.float64)

    def f(x):
        return sr.dropout(KEY, x * x, 0.4) * weight

    assert torch.autograd.gradcheck(f, x, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, x, check_fwd_over_rev=True)

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return sr.dropout(KEY, x, 0.4)

        @staticmethod
        def backward(ctx, grad):
            return sr.dropout(sr.key(5), grad, 0.4)

    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        torch.autograd.gradcheck(Broken.apply, x)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), weight)
        y = forward_ad.unpack_dual(sr.dropout(KEY, dual, 0.4))
    assert torch.equal(y.tangent, expected(weight, 0.4)) and torch.equal(y.primal, expected(x.detach(), 0.4))


@pytest.mark.parametrize("inplace", [False, True])
def test_layouts(inplace):
    """Element (i, j) has the mask of (i, j) in any layout, and the layout is kept as torch keeps it."""
    plain = sr.normal(sr.key(6), 2, 6, 5, 7)
    wanted = sr.dropout(KEY, plain, 0.5)
    for laid in (
        plain.clone(memory_format=torch.channels_last),
        plain.transpose(1, 3).contiguous().transpose(1, 3),
        torch.stack([plain, plain], -1)[..., 0],
    ):
        theirs = F.dropout(laid.clone(), 0.5, inplace=False)
        x = laid.clone() if laid.is_contiguous(memory_format=torch.channels_last) else laid
        drawn = sr.dropout(KEY, x, 0.5, inplace=inplace)
        assert torch.equal(drawn, wanted) and drawn.stride() == (x.stride() if inplace else theirs.stride())
        assert (drawn is x) == inplace
    grad = torch.ones(5, 4).t()
    x = torch.ones(4, 5, requires_grad=True)
    sr.dropout(KEY, x, 0.5).backward(grad)
    assert torch.equal(x.grad, sr.dropout(KEY, torch.ones(4, 5), 0.5))


def test_batched_keys_and_no_grad():
    """Each key of a batch drops its rows; a tensor that needs no gradient is not recorded."""
    keys, x = sr.split(KEY, 3).view(3, 1, 2), torch.ones(3, 100)
    drawn = sr.dropout(keys, x, 0.5)
    assert all(torch.equal(drawn[i], sr.dropout(keys[i, 0], x[i], 0.5)) for i in range(3))
    assert drawn.grad_fn is None
    with torch.no_grad():
        assert sr.dropout(KEY, torch.ones(3, requires_grad=True), 0.5).grad_fn is None


def test_a_changed_key_is_seen():
    """Backward refuses a key that was written since, rather than draw another mask."""
    key = sr.key(1)
    x = torch.ones(9, requires_grad=True)
    y = sr.dropout(key, x, 0.5).sum()
    key.copy_(sr.key(2))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_a_leaf_cannot_be_dropped_in_place():
    """As torch: an in-place dropout of a leaf that requires grad raises, and leaves it as it was."""
    x = torch.ones(1000, requires_grad=True)
    with pytest.raises(InvalidArgumentError, match="leaf"):
        sr.dropout(KEY, x, 0.5, inplace=True)
    assert (x == 1).all()
