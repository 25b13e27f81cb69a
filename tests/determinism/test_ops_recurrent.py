"""Recurrent layers under `across="machines"`: composed of covered ops, the same bits over threads and
batches.
"""

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._python_dispatch import TorchDispatchMode

import samebits
from samebits._digest import of_value
from samebits.arithmetic.recurrent import DTYPES
from samebits.determinism._ops import recurrent


class Calls(TorchDispatchMode):
    """The names of the ops that a block calls."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, op, kinds, args=(), kwargs=None):
        self.names.add(op.name())
        return op(*args, **(kwargs or {}))


@pytest.fixture
def mode():
    samebits.set_random_seed(1)
    with samebits.enable_op_determinism(across="machines"):
        yield


def layer(kind):
    torch.manual_seed(2)
    return kind(20, 33, num_layers=2, batch_first=True, bidirectional=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_layers_have_the_same_bits_over_threads_and_near_those_of_torch(kind, mode):
    """Outputs and gradients, packed sequences too, have one digest over threads, and are those of torch's own layer but for rounding."""
    x = torch.randn(9, 7, 20)
    lengths = [7, 7, 6, 5, 5, 4, 3, 2, 1]

    def results(dtype=torch.float32):
        model = layer(kind).to(dtype)
        values = []
        for images in (x.to(dtype), pack_padded_sequence(x.to(dtype), lengths, batch_first=True)):
            y = model(images)[0]
            y = y if isinstance(y, torch.Tensor) else y.data
            values += [y, *torch.autograd.grad((y * y).sum(), list(model.parameters()))]
        return values

    seen = set()
    for threads in (1, 2, 3, 7):
        torch.set_num_threads(threads)
        found = results()
        seen.add(of_value(found))
    assert len(seen) == 1
    exact = results(torch.float64)
    assert all(
        (a - b).abs().max() < 1e-4 * max(1.0, b.abs().max()) for a, b in zip(found, exact, strict=True)
    )


def test_a_sequences_result_does_not_depend_on_the_batch(mode):
    """A sequence has the same output alone and among others."""
    model, x = layer(torch.nn.LSTM), torch.randn(33, 5, 20)
    whole = model(x)[0]
    for at in (0, 16, 32):
        assert torch.equal(model(x[at : at + 1])[0][0], whole[at])


def test_no_kernel_of_onednn_is_called_and_the_flag_is_restored():
    """An LSTM calls oneDNN's layer without the mode, and no op of oneDNN in it; torch's flag is as before afterwards."""
    model, x = layer(torch.nn.LSTM), torch.randn(3, 5, 20)
    assert torch.backends.mkldnn.enabled
    with Calls() as before:
        model(x)
    assert any("mkldnn" in name for name in before.names)
    samebits.set_random_seed(1)
    with samebits.enable_op_determinism(across="machines"), Calls() as calls:
        model(x)
    assert not any("mkldnn" in name for name in calls.names)
    assert torch.backends.mkldnn.enabled


def of_layer(options, dtype=torch.float32, batch=7, kind=torch.nn.LSTM, hidden=33):
    """A layer's outputs, last states and gradients."""
    torch.manual_seed(3)
    model = kind(20, hidden, **options).to(dtype)
    x = torch.randn(batch, 9, 20) if model.batch_first else torch.randn(9, batch, 20)
    x = x.to(dtype).requires_grad_()
    states = [
        torch.randn(len(model._all_weights), x.shape[0 if model.batch_first else 1], hidden)
        .to(dtype)
        .requires_grad_()
        for _ in range(2 if kind is torch.nn.LSTM else 1)
    ]
    y, last = model(x, tuple(states) if len(states) == 2 else states[0])
    last = last if len(states) == 2 else [last]
    grads = torch.autograd.grad((y * y).sum() + (last[0] * last[-1]).sum(), [x, *states, *model.parameters()])
    return [y, *last], list(grads)


OPTIONS = (
    {},
    {"bias": False},
    {"num_layers": 2, "bidirectional": True},
    {"num_layers": 3, "batch_first": True, "dropout": 0.0},
)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
@pytest.mark.parametrize(("kind", "hidden"), [(torch.nn.LSTM, 33), (torch.nn.GRU, 33), (torch.nn.GRU, 34)])
def test_a_layer_is_that_which_torch_composes(kind, hidden, options, dtype, mode, monkeypatch):
    """Outputs have the bits of the composed layer; gradients are as near to float64 as its gradients (at most twice as far)."""
    for batch in (1, 3, 7):
        outputs, grads = of_layer(options, dtype, batch, kind, hidden)
        with monkeypatch.context() as composing:
            composing.setattr(recurrent, "_takes", lambda *_: False)
            composed, grads_composed = of_layer(options, dtype, batch, kind, hidden)
        assert all(map(torch.equal, outputs, composed))
        _, exact = of_layer(options, torch.float64, batch, kind, hidden)
        ours, theirs = (
            torch.tensor([(a - b).square().mean().sqrt() for a, b in zip(found, exact, strict=True)])
            for found in (grads, grads_composed)
        )
        assert (ours <= 2 * theirs).all()
        # a GRU of 33 bfloat16 is composed
        if kind is torch.nn.LSTM or hidden == 34 or dtype == torch.float32:
            assert not all(map(torch.equal, grads, grads_composed))  # our layer ran


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
@pytest.mark.parametrize("hidden", [160, 700, 701])
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_a_wide_layer_has_the_same_bits_over_threads(kind, hidden, dtype, mode):
    """Products of several chunks and cells of several chunks, on 1 to 5 threads."""

    def of_wide_layer():
        torch.manual_seed(5)
        model, x = kind(24, hidden).to(dtype), torch.randn(6, 40, 24).to(dtype)
        y, last = model(x)
        return [y, last, *torch.autograd.grad(y.square().sum(), list(model.parameters()))]

    seen = set()
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        seen.add(of_value(of_wide_layer()))
    assert len(seen) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_a_gradient_can_be_differentiated_again(kind, mode):
    """Second derivatives are those of the composed layer in float64, but for rounding."""

    def second(dtype):
        torch.manual_seed(4)
        model, x = kind(5, 6).to(dtype), torch.randn(4, 3, 5).to(dtype).requires_grad_()
        (first,) = torch.autograd.grad(model(x)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), [x, *model.parameters()])

    for ours, exact in zip(second(torch.float32), second(torch.float64), strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_what_is_no_plain_layer_is_composed_or_refused_by_torch(mode):
    """Projections, float64 and forward derivatives have torch's layer; states of a wrong size raise torch's error."""
    x = torch.randn(4, 3, 5)
    assert torch.nn.LSTM(5, 6, proj_size=2)(x)[0].shape == (4, 3, 2)
    model = torch.nn.LSTM(5, 6)
    assert model.double()(x.double())[0].dtype == torch.float64
    model.float()
    _, slope = torch.func.jvp(lambda x: model(x)[0].sum(), (x,), (torch.ones_like(x),))
    assert slope.isfinite()
    flat = [*model.parameters()]
    states = [torch.zeros(1, 3, 7), torch.zeros(1, 3, 7)]
    with pytest.raises(RuntimeError):
        torch._VF.lstm(x, states, flat, True, 1, 0.0, True, False, False)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_inference_mode_and_autocast_have_our_layer(dtype, mode):
    """In inference mode an output has the bits of training; under autocast those of a layer of bfloat16, and oneDNN's types."""
    x, model = torch.randn(4, 3, 5), torch.nn.LSTM(5, 6)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        with Calls() as calls:
            y, states = model(x)
        with torch.inference_mode():
            assert torch.equal(model(x)[0], y)
    assert not any("sigmoid" in name for name in calls.names)
    if dtype is not None:
        assert {y.dtype, *(one.dtype for one in states)} == {dtype}
        assert torch.equal(model.to(dtype)(x.to(dtype))[0], y)
        y.sum().backward()
