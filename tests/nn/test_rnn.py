"""RNN, LSTM and GRU: torch's own numbers, and a keyed dropout between the layers."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from samebits import enable_op_determinism, set_random_seed
from samebits.nn import _masks as masks
from samebits.nn import _rnn as rnn
from samebits.nn import own_randomness, set_step

KINDS = [nn.RNN, nn.LSTM, nn.GRU]


def make(kind, dropout=0.4, **options):
    torch.manual_seed(0)
    return kind(3, 5, num_layers=3, dropout=dropout, **options)


def pairs():
    for kind, first, both, bias in itertools.product(KINDS, (False, True), (False, True), (False, True)):
        yield kind, dict(batch_first=first, bidirectional=both, bias=bias)
    yield nn.LSTM, dict(proj_size=2)
    yield nn.LSTM, dict(proj_size=2, bidirectional=True)
    yield nn.RNN, dict(nonlinearity="relu")


def sequences(module):
    torch.manual_seed(1)
    batch = torch.randn(4, 2, 3) if not module.batch_first else torch.randn(2, 4, 3)
    yield "batch", batch
    yield "unbatched", torch.randn(4, 3)
    lengths = torch.tensor([2, 4])
    yield "packed", pack_padded_sequence(batch, lengths, batch_first=module.batch_first, enforce_sorted=False)


def start(module, kind):
    rows = module.num_layers * (2 if module.bidirectional else 1)
    shape = (rows, 2) if kind != "unbatched" else (rows,)
    h = torch.randn(*shape, module.proj_size or module.hidden_size)
    return (h, torch.randn(*shape, module.hidden_size)) if module.mode == "LSTM" else h


def flat(result):
    output, hidden = result
    return [getattr(output, "data", output), *(hidden if isinstance(hidden, tuple) else (hidden,))]


@pytest.fixture
def products_of_our_own():
    """MKL's products follow the address of what they multiply on some CPUs, and each way has the parts of a sequence elsewhere."""
    set_random_seed(0)
    with enable_op_determinism(across="machines"):
        yield


@pytest.mark.usefixtures("products_of_our_own")
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_layer_by_layer_is_torchs_forward(monkeypatch):
    """With a mask that keeps everything, outputs, states and gradients are bit for bit those of torch without dropout."""
    monkeypatch.setattr(rnn, "dropout", lambda key, input, p: input)
    for kind, options in pairs():
        plain, own = make(kind, dropout=0.0, **options), own_randomness(make(kind, **options))
        for name, x in sequences(plain):
            for hx in (None, start(plain, name)):
                expected, actual = flat(plain(x, hx)), flat(own(x, hx))
                for a, b in zip(actual, expected, strict=True):
                    assert torch.equal(a, b), (kind, options, name)
                grads = [
                    torch.autograd.grad(sum(t.square().sum() for t in r), list(m.parameters()))
                    for r, m in ((expected, plain), (actual, own))
                ]
                assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(*grads, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_the_dropout_is_between_the_layers(kind):
    """The output is that of single layers with the module's masks in between; the last layer's output has no zeros."""
    own = own_randomness(make(kind))
    x = torch.randn(6, 2, 3)
    set_step(own, 0, seed=1)
    output, _ = own(x)
    set_step(own, 0, seed=1)
    keys = own.next_keys(x.device, 2)
    for number in range(3):
        single = kind(x.shape[-1], 5)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            getattr(single, f"{name}_l0").data.copy_(getattr(own, f"{name}_l{number}"))
        x = single(x)[0]
        if number < 2:
            x = masks.dropout(keys[number], x, 0.4)
            assert (x == 0).any()
    assert torch.allclose(output, x, rtol=1e-5, atol=1e-6) and not (output == 0).any()


def test_packed_sequences_are_padded_back():
    """A packed result unpacks to the lengths and the order of the batch that went in."""
    own = own_randomness(make(nn.LSTM, batch_first=True))
    lengths = torch.tensor([2, 4])
    packed = pack_padded_sequence(torch.randn(2, 4, 3), lengths, batch_first=True, enforce_sorted=False)
    output, (h, c) = own(packed)
    padded, found = pad_packed_sequence(output, batch_first=True)
    assert torch.equal(found, lengths) and torch.equal(padded[0, 1], h[-1, 0])


def test_masks_are_of_the_step():
    """Equal steps give equal outputs, others another; torch's follows the global generator (negative control)."""
    x, outs = torch.randn(6, 2, 3), []
    own, plain = own_randomness(make(nn.GRU)), make(nn.GRU)
    for step in (0, 1, 0):
        set_step(own, step, seed=1)
        outs.append(own(x)[0])
    assert torch.equal(outs[0], outs[2]) and not torch.equal(outs[0], outs[1])
    assert not torch.equal(plain(x)[0], plain(x)[0])


def test_eval_mode_is_torchs_forward():
    """In eval mode there is no dropout and torch's own forward runs."""
    x = torch.randn(6, 2, 3)
    for kind in KINDS:
        assert torch.equal(own_randomness(make(kind)).eval()(x)[0], make(kind).eval()(x)[0])


def test_a_state_of_another_number_of_layers_raises():
    """A hidden state with too many rows is not silently cut."""
    own = own_randomness(make(nn.GRU))
    with pytest.raises(RuntimeError, match="Expected hidden size"):
        own(torch.randn(6, 2, 3), torch.randn(4, 2, 5))


def test_parametrized_weights_are_used(monkeypatch):
    """weight_norm on a layer's weight keeps working, and gets gradients."""
    monkeypatch.setattr(rnn, "dropout", lambda key, input, p: input)
    plain, own = make(nn.LSTM, dropout=0.0), make(nn.LSTM)
    for module in (plain, own):
        weight_norm(module, "weight_hh_l1")
        module.parametrizations.weight_hh_l1.original0.data.mul_(2)
    own_randomness(own)
    x = torch.randn(6, 2, 3)
    a, b = own(x)[0], plain(x)[0]
    assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    a.sum().backward()
    assert own.parametrizations.weight_hh_l1.original0.grad is not None
