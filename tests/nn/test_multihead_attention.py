"""Multi-head attention: torch's own numbers with the same mask, in every combination of its options."""

import itertools

import pytest
import torch
from torch import nn

import samebits
from samebits.nn import own_randomness, set_step

E, HEADS, L, S, N = 8, 2, 5, 4, 3


def attention(batch_first=False, kdim=None, vdim=None, bias_kv=False, zero=False, bias=True, dropout=0.3):
    torch.manual_seed(0)
    return nn.MultiheadAttention(
        E, HEADS, dropout=dropout, bias=bias, add_bias_kv=bias_kv, add_zero_attn=zero, kdim=kdim, vdim=vdim,
        batch_first=batch_first,
    )  # fmt: skip


def inputs(module, batched=True):
    torch.manual_seed(1)

    def sequence(length, size):
        if not batched:
            return torch.randn(length, size)
        return torch.randn(N, length, size) if module.batch_first else torch.randn(length, N, size)

    return sequence(L, E), sequence(S, module.kdim), sequence(S, module.vdim)


def run(module, mask, args, **options):
    """(output, weights, gradients) with the dropout of attention weights replaced by this mask, or by none."""
    owner = (
        samebits.nn._multihead_attention
        if isinstance(module, samebits.nn.MultiheadAttention)
        else torch.nn.functional
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, "dropout", mask)
        out, weights = module(*args, **options)
    total = out.square().sum() + (0 if weights is None else weights.square().sum())
    return out, weights, *torch.autograd.grad(total, list(module.parameters()), allow_unused=True)


def same_mask(*args, p=0.3, **options):
    """Takes the place of either dropout: a fixed mask of the weights' shape."""
    weights = next(a for a in args if a.dtype.is_floating_point)
    kept = torch.rand(weights.shape, generator=torch.Generator().manual_seed(5)) >= 0.3
    return weights * kept / 0.7


OPTIONS = [
    dict(batch_first=b, kdim=k, vdim=v, bias_kv=kv, zero=z, bias=bias)
    for b, (k, v), kv, z, bias in itertools.product(
        (False, True), ((None, None), (6, 7)), (False, True), (False, True), (True, False)
    )
]


def masks(kind, batched):
    causal = nn.Transformer.generate_square_subsequent_mask(L)[:, :S]
    full = torch.randn((N if batched else 1) * HEADS, L, S, generator=torch.Generator().manual_seed(3))
    padding = (
        torch.tensor([False, False, True, True]).expand(N, S) if batched else torch.tensor([False, True] * 2)
    )
    return {
        "none": {},
        "bool": dict(attn_mask=causal.isinf()),
        "float3d": dict(attn_mask=full),
        "padding": dict(key_padding_mask=padding),
        "both": dict(attn_mask=causal.isinf(), key_padding_mask=padding),
        "causal": dict(attn_mask=causal, is_causal=True),
    }[kind]


@pytest.mark.parametrize("kind", ["none", "bool", "float3d", "padding", "both", "causal"])
@pytest.mark.parametrize("batched", [True, False])
def test_the_numbers_are_torchs_with_the_same_mask(kind, batched):
    """need_weights=True: output, weights and gradients are bit for bit torch's, over all options of the module."""
    for options in OPTIONS:
        for average in (True, False):
            call = dict(masks(kind, batched), average_attn_weights=average)
            plain = attention(**options)
            args = inputs(plain, batched)
            expected = run(plain, same_mask, args, **call)
            actual = run(own_randomness(attention(**options)), same_mask, args, **call)
            assert actual[0].shape == expected[0].shape and actual[1].shape == expected[1].shape
            for a, b in zip(actual, expected, strict=True):
                assert torch.equal(a, b), options


def test_self_attention_projects_once():
    """query is key is value: the packed product of torch, with its bits."""
    for first in (False, True):
        plain, own = attention(first), own_randomness(attention(first))
        x = inputs(plain)[0]
        assert all(map(torch.equal, run(own, same_mask, (x, x, x)), run(plain, same_mask, (x, x, x))))


@pytest.mark.parametrize("kind", ["none", "bool", "float3d", "padding", "both", "causal"])
def test_without_weights_it_is_scaled_dot_product_attention(kind):
    """need_weights=False: within rounding of SDPA's math path with the same mask, causal hint and masked rows too."""
    for options in (dict(), dict(bias_kv=True), dict(zero=True, batch_first=True)):
        plain = attention(**options)
        args = inputs(plain)
        call = dict(masks(kind, batched=True), need_weights=False)
        own = own_randomness(attention(**options))
        heads = N * HEADS
        width = S + len(set(options) & {"bias_kv", "zero"})
        kept = (same_mask(torch.ones(heads, L, width)) > 0).view(N, HEADS, L, width)

        def with_mask(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False):
            return torch.ops.aten._scaled_dot_product_attention_math(
                q, k, v, attn_mask, dropout_p, is_causal, dropout_mask=kept
            )[0]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nn.functional, "scaled_dot_product_attention", with_mask)
            expected, none = plain(*args, **call)
        actual = run(own, same_mask, args, **call)
        assert none is None and actual[1] is None
        assert torch.allclose(actual[0], expected, rtol=1e-5, atol=1e-6)


def test_a_fully_masked_row():
    """NaN with weights, zero attention without: as torch's two paths."""
    plain = attention()
    args, mask = inputs(plain), torch.zeros(L, S).index_fill_(0, torch.tensor([2]), -torch.inf)
    own = own_randomness(attention())
    for need in (True, False):
        a = own(*args, attn_mask=mask, need_weights=need)[0]
        b = plain(*args, attn_mask=mask, need_weights=need)[0]
        assert torch.equal(a.isnan(), b.isnan()) and a.isnan().any() == need


def test_the_mask_is_of_the_step():
    """Equal steps give equal attention, others another; torch's follows the global generator (negative control)."""
    own, plain = own_randomness(attention()), attention()
    args = inputs(plain)
    outs = []
    for step in (0, 1, 0):
        set_step(own, step, seed=1)
        torch.rand(3)
        outs.append(own(*args)[0])
    assert torch.equal(outs[0], outs[2]) and not torch.equal(outs[0], outs[1])
    assert not torch.equal(plain(*args)[0], plain(*args)[0])


def test_eval_mode_and_no_dropout_are_torchs_own_path():
    """In eval mode, and with p = 0, the bits are those of torch's forward, fast path included."""
    for dropout, training in ((0.3, False), (0.0, True)):
        plain = attention(batch_first=True, dropout=dropout).train(training)
        own = own_randomness(attention(batch_first=True, dropout=dropout)).train(training)
        x = inputs(plain)[0]
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                assert torch.equal(own(x, x, x)[0], plain(x, x, x)[0])


def test_wrong_masks_raise():
    """A mask of another shape raises, and is_causal without a mask, as in torch."""
    own = own_randomness(attention())
    args = inputs(own)
    with pytest.raises(RuntimeError, match="attn_mask"):
        own(*args, attn_mask=torch.zeros(L, S + 1))
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        own(*args, is_causal=True)
    with pytest.raises(AssertionError):
        own(*args, key_padding_mask=torch.zeros(S, dtype=torch.bool))


def test_a_transformer_trains_on_its_steps_masks():
    """nn.Transformer, converted: loss and gradients are a function of the step, whoever else draws in between."""

    def losses(noise, convert=True):
        torch.manual_seed(0)
        net = nn.Transformer(8, 2, 2, 2, 16, dropout=0.2, batch_first=True)
        if convert:
            own_randomness(net)
        x, y = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
        found = []
        for step in range(2):
            set_step(net, step, seed=1)
            torch.rand(noise)
            loss = net(x, y).square().sum()
            found += [loss, *torch.autograd.grad(loss, list(net.parameters()))]
        return found

    assert all(map(torch.equal, losses(0), losses(9)))
    assert not torch.equal(losses(0, convert=False)[0], losses(9, convert=False)[0])  # negative control
