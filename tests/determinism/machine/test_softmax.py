"""Softmax, attention and the negative log-likelihood under `across="machines"`."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from exact_sums import fma, reduced
from op_testing import numbers, replaced
from samebits._digest import of_value
from samebits.determinism._ops import attention, losses, softmax, sums
from samebits.errors import UnimplementedError

pytestmark = pytest.mark.slow

ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def bits(x):
    return x.contiguous().view(torch.int32).tolist()


@pytest.fixture(scope="module", autouse=True)
def ours():
    with replaced(softmax, sums, losses, attention):
        yield


def exponential(x):
    """exp of float32 numbers that are not positive, by the documented sequence of operations."""
    real = np.float32
    x = np.where(x < real(-104), real(-104), x).astype(real)
    k = fma(x, np.full_like(x, np.log2(np.e)), np.full_like(x, 12582912)) - real(12582912)
    r = fma(k, np.full_like(x, -0.693145751953125), x)
    r = fma(k, np.full_like(x, -1.42860682030941723212e-6), r)
    p = np.full_like(x, 1 / 5040)
    for divisor in (720, 120, 24, 6, 2, 1, 1):
        p = fma(p, r, np.full_like(x, 1 / divisor))
    half = np.floor(k / 2).astype(int)
    return (np.ldexp(p, half) * np.ldexp(real(1), k.astype(int) - half)).astype(real)


@pytest.mark.parametrize("length", (*range(1, 40), 100, 256, 257, 1000))
def test_softmax_follows_its_definition(length):
    """exp(x - m) by a fixed polynomial, divided by S of them; the gradient is y (g - S(g y))."""
    x, g = 9 * numbers((length,), torch.float32, length), numbers((length,), torch.float32, 7)
    v = x.numpy()
    e = exponential(v - v.max())
    y = e / reduced(e)
    assert bits(F.softmax(x, 0)) == bits(torch.tensor(y))
    products = reduced_product(g.numpy(), y)
    seen = torch.ops.aten._softmax_backward_data(g, torch.tensor(y), 0, torch.float32)
    assert bits(seen) == bits(torch.tensor(y * (g.numpy() - products)))


def reduced_product(x, y):
    pairs = np.stack([x, y])
    parts = []
    for i in range(0, len(x), 256):
        lanes = np.zeros(16, np.float32)
        for j in range(i, min(len(x), i + 256), 16):
            a, b = pairs[:, j : min(i + 256, j + 16)]
            lanes[: len(a)] = fma(a, b, lanes[: len(a)])
        while len(lanes) > 1:
            lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
        parts.append(lanes[0])
    return parts[0] if len(parts) == 1 else reduced(np.array(parts))


def test_the_exponential_is_within_one_ulp():
    """exp of float32 from -103 to 0 differs by less than 1 ulp from the exact one (every 997th float)."""
    words = np.arange(0x80000000, 0xC2CE0000, 997, dtype=np.uint32)
    x = words.view(np.float32)
    seen, exact = exponential(x).astype(np.float64), np.exp(x.astype(np.float64))
    ulp = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert (np.abs(seen - exact) / ulp).max() < 1


@pytest.mark.parametrize("dim", (0, 1, 2))
@pytest.mark.parametrize("call", (F.softmax, F.log_softmax))
def test_a_dimension_does_not_change_a_row(dim, call):
    """Softmax over any dimension and layout has the bits of softmax of each row alone, and so has its gradient."""
    shape = (5, 300, 21)
    x, g = numbers(shape, torch.float32, 0), numbers(shape, torch.float32, 1)
    op = (
        torch.ops.aten._softmax_backward_data
        if call is F.softmax
        else torch.ops.aten._log_softmax_backward_data
    )
    y = call(x.transpose(0, 2).contiguous().transpose(0, 2), dim)
    grad = op(g, y, dim, torch.float32)
    rows, grads = y.movedim(dim, -1).flatten(0, 1), grad.movedim(dim, -1).flatten(0, 1)
    for i, row in enumerate(x.movedim(dim, -1).flatten(0, 1)):
        if i % 7 == 0:
            assert bits(call(row, 0)) == bits(rows[i])
            assert bits(
                op(g.movedim(dim, -1).flatten(0, 1)[i], rows[i].contiguous(), 0, torch.float32)
            ) == bits(grads[i])


def test_infinities_and_nan_are_as_in_torch():
    """A row of -inf, a NaN or +inf makes NaN, the one without payload; a single -inf has probability 0."""
    inf = float("inf")
    x = torch.tensor([[-inf, -inf], [float("nan"), 1], [inf, 1], [-inf, 1]])
    made = F.softmax(x, 1)
    assert bits(made[:3]) == [[0x7FC00000] * 2] * 3
    assert made[3].tolist() == [0, 1]
    assert F.log_softmax(x, 1)[3].tolist() == [-inf, 0]


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
@pytest.mark.parametrize("shape", ((), (3,), (4, 5)))
@pytest.mark.parametrize("smoothing", (0, 0.1))
def test_cross_entropy_is_torchs(dtype, shape, smoothing):
    """Cross entropy with weights, ignored targets and smoothing has torch's value, shape and gradient."""
    x = numbers((6, 7, *shape), torch.float64, 0)
    target = torch.arange(x[:, 0].numel()).view(6, *shape) % 7
    target.flatten()[::4] = -100
    weight = torch.rand(7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for reduction in ("none", "mean", "sum"):
        made = x.to(dtype).requires_grad_()
        loss = F.cross_entropy(made, target, weight.to(dtype), reduction=reduction, label_smoothing=smoothing)
        loss.sum().backward()
        log_p, one_hot = x.log_softmax(1), F.one_hot(target.clamp(min=0), 7).movedim(-1, 1)
        w = weight.view(1, 7, *(1 for _ in shape))
        kept = (target != -100).double()
        plain = -(log_p * w * one_hot).sum(1) * kept
        smooth = -(log_p * w).sum(1) * kept / 7
        expected = (1 - smoothing) * plain + smoothing * smooth
        total = (w * one_hot).sum(1) * kept
        if reduction != "none":
            expected = expected.sum() / (total.sum() if reduction == "mean" else 1)
        slack = 2e-6 if dtype == torch.float32 else 3e-2
        assert ((loss - expected).abs() <= slack * (1 + expected.abs())).all()
        assert made.grad.isfinite().all()


def test_a_target_that_is_no_class_raises_torchs_error():
    """IndexError, by torch's kernel."""
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        F.nll_loss(torch.zeros(2, 3), torch.tensor([0, 7]))


@pytest.mark.parametrize("mode", ("plain", "causal", "mask", "bool mask"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_attention_is_attention(mode, dtype):
    """Attention of the fused kernel, composed: near the value in float64 as torch's softmax of products, and its gradients."""
    q, k, v = (numbers((2, 3, length, 8), torch.float64, length) for length in (9, 12, 12))
    seen = torch.rand(2, 1, 9, 12, generator=torch.Generator().manual_seed(1)) > 0.5
    seen[0, 0, 0] = False
    added = numbers((9, 12), torch.float64, 5)
    hidden = {
        "plain": 0.0,
        "causal": torch.ones(9, 12).triu(1) * -1e30,
        "mask": added,
        "bool mask": torch.where(seen, 0.0, -1e30),
    }[mode]
    kwargs = {
        "plain": {},
        "causal": {"is_causal": True},
        "mask": {"attn_mask": added.to(dtype)},
        "bool mask": {"attn_mask": seen},
    }[mode]
    if mode == "mask":
        hidden = added.to(dtype).double()
    ours = [x.to(dtype).requires_grad_() for x in (q, k, v)]
    exact = [x.detach().double().requires_grad_() for x in ours]
    out = F.scaled_dot_product_attention(*ours, **kwargs)
    weights = (exact[0] @ exact[1].mT / 8**0.5 + hidden).softmax(-1) * (
        seen.any(-1, keepdim=True) | (mode != "bool mask")
    )
    expected = weights @ exact[2]
    g = numbers(out.shape, torch.float64, 3).to(dtype)
    out.backward(g)
    expected.backward(g.double())
    slack = 2e-6 if dtype == torch.float32 else 2e-2
    assert (out - expected).abs().max() < slack
    for a, b in zip(ours, exact, strict=True):
        assert (a.grad - b.grad).abs().max() < 4 * slack


def test_attention_of_a_query_does_not_depend_on_the_others():
    """Softmax of causal attention has the bits of softmax of the keys that a query sees."""
    from samebits.arithmetic.softmax.tensors import attention_weights

    scores = numbers((2, 300, 300), torch.float32, 0)
    made, _ = attention_weights(scores.clone(), 300)
    for query in (0, 15, 16, 100, 255, 256, 299):
        assert bits(made[1, query, : query + 1]) == bits(F.softmax(scores[1, query, : query + 1], 0))
        assert not made[1, query, query + 1 :].any()


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
def test_heads_that_share_a_key_have_the_bits_of_repeated_keys(dtype):
    """`enable_gqa` is attention of repeated keys and values, whose gradients are summed; torch's kernel, which follows the CPU, is not called."""
    q = numbers((2, 6, 5, 8), dtype, 1).requires_grad_()
    k, v = (numbers((2, 2, 7, 8), dtype, seed).requires_grad_() for seed in (2, 3))
    out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    repeated = F.scaled_dot_product_attention(q, *(x.repeat_interleave(3, 1) for x in (k, v)))
    assert torch.equal(out, repeated)
    g = numbers(out.shape, dtype, 4)
    exact = torch.autograd.grad(repeated, (q, k, v), g)
    for ours, other in zip(torch.autograd.grad(out, (q, k, v), g), exact, strict=True):
        assert ours.shape == other.shape
        slack = 2e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(ours, other, rtol=slack, atol=slack)


def test_attention_that_is_not_computed_here_raises():
    """Nothing that torch's kernel takes and ours does not runs in silence; an empty batch has nothing to compute."""
    q, k = numbers((1, 2, 3, 4), torch.float32, 1), numbers((1, 2, 5, 4), torch.float32, 2)
    with pytest.raises((RuntimeError, UnimplementedError)):
        ATTENTION(q, k, k, 0.5, False)
    with pytest.raises((RuntimeError, UnimplementedError)):
        ATTENTION(q, k, numbers((1, 1, 5, 4), torch.float32, 2), 0.0, False)
    assert ATTENTION(q[:0], k[:0], k[:0], 0.0, False)[0].shape == (0, 2, 3, 4)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float64), ids=str)
@pytest.mark.parametrize("mode", ("plain", "causal", "mask"))
def test_attention_does_not_depend_on_how_much_is_computed_at_a_time(mode, dtype, monkeypatch):
    """Outputs, sums and gradients are equal for one head at a time, some heads, some items, and all; they are laid out as torch's."""
    q, k, v, g = (
        numbers((5, length, 3, 8), dtype, seed).transpose(1, 2) for seed, length in enumerate((9, 12, 12, 9))
    )
    seen = torch.rand(5, 1, 9, 12, generator=torch.Generator().manual_seed(1)) > 0.5
    seen[0, 0, 0] = False
    mask = torch.where(seen, 0.0, float("-inf")).to(dtype) if mode == "mask" else None
    options = {"attn_mask": mask}
    found = []
    for scores in (1, 2 * 9 * 12, 2 * 3 * 9 * 12, 1 << 18):
        monkeypatch.setattr(attention, "_SCORES", -(-scores // torch.get_num_threads()))
        out, sums = ATTENTION(q, k, v, 0.0, mode == "causal", **options)
        grads = ATTENTION_BACKWARD(g, q, k, v, out, sums, 0.0, mode == "causal", **options)
        found.append([out, sums, *grads])
    assert len({of_value(one) for one in found}) == 1
    assert [x.stride() for x in found[0][2:]] == [x.stride() for x in (q, k, v)]


def test_an_encoder_in_evaluation_is_near_its_slow_path():
    """The fast path of an encoder layer, with its masks, agrees with the modules one by one."""
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x, padding = numbers((2, 5, 16), torch.float32, 0), torch.zeros(2, 5, dtype=torch.bool)
    padding[0, 3:] = True
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    for kwargs in ({}, {"src_key_padding_mask": padding}, {"src_mask": causal}):
        with torch.no_grad():
            fast = layer(x, **kwargs)
        slow = layer(x.requires_grad_(), **kwargs).detach()
        x = x.detach()
        assert (fast - slow)[1].abs().max() < 2e-6


def test_gradients_of_softmax():
    """gradcheck: softmax and log-softmax over each dimension, and attention."""
    x = numbers((3, 4, 5), torch.float64, 0).requires_grad_()
    for dim in (0, 1, 2):
        assert torch.autograd.gradcheck(lambda x, dim=dim: x.softmax(dim), (x,))
        assert torch.autograd.gradcheck(lambda x, dim=dim: x.log_softmax(dim), (x,))
    q, k, v = (numbers((1, 2, 3, 4), torch.float64, seed).requires_grad_() for seed in range(3))
    assert torch.autograd.gradcheck(lambda *x: F.scaled_dot_product_attention(*x, is_causal=True), (q, k, v))


def test_complex_numbers_are_refused():
    """softmax of complex numbers raises."""
    with pytest.raises(UnimplementedError, match="_softmax of complex64"):
        torch.ops.aten._softmax(torch.ones(3, dtype=torch.complex64), 0, False)
