"""`samebits.nn.compiled`: eager's masks in one graph, with checkpointing, graph breaks and copies."""

import copy

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

import samebits.nn as sn
import samebits.random as sr
from samebits.nn import compiled, own_randomness, set_step
from samebits.nn._layer_keys import layers

X = torch.linspace(-1, 1, 96).view(12, 8)


class Net(nn.Module):
    """Each kind of mask, and one layer that is called twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.drop, self.channels = sn.Dropout(0.5), sn.Dropout2d(0.3)
        self.others = nn.Sequential(
            sn.GaussianNoise(0.1), sn.RReLU(), sn.AlphaDropout(0.2), sn.StochasticDepth(0.3)
        )

    def forward(self, x):
        h = self.others(self.drop(self.drop(self.first(x).relu())))
        return self.last(self.channels(h.view(-1, 4, 2, 2)).view(-1, 16))


class Checkpointed(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return checkpoint(self.net, x, use_reentrant=False)


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    counters.clear()


def gradients(net, output):
    return torch.autograd.grad(output.square().sum(), list(net.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "dynamic"), [("aot_eager", None), ("aot_eager", True), ("inductor", None)]
)
def test_one_graph_has_eagers_masks(backend, dynamic):
    """Forward and backward of several calls in several steps are eager's, in one graph; eager calls go on counting."""
    net, plain = Net(), Net()
    fast = compiled(net, backend=backend, fullgraph=True, dynamic=dynamic)
    before = None
    for step in range(3):
        for model in (fast, plain):
            set_step(model, step, seed=1)
        for _ in range(2):
            ours, theirs = fast(X), plain(X)
            assert torch.allclose(ours, theirs, atol=1e-6)
            for a, b in zip(gradients(net, ours), gradients(plain, theirs), strict=True):
                assert torch.allclose(a, b, atol=1e-5)
            assert before is None or not torch.allclose(ours, before)
            before = ours
        assert torch.equal(net(X), plain(X))
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]


@pytest.mark.slow
def test_a_transformer_is_one_graph():
    """own_randomness on torch's layer, whose attention drops its weights, leaves a single graph with eager's masks."""
    torch.manual_seed(0)
    net = own_randomness(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True))
    plain, x = copy.deepcopy(net), torch.linspace(-1, 1, 240).view(3, 5, 16)
    fast = compiled(net, backend="aot_eager", fullgraph=True)
    for step in range(2):
        for model in (fast, plain):
            set_step(model, step, seed=1)
        assert torch.allclose(fast(x), plain(x), atol=1e-5)


@pytest.mark.slow
def test_torch_compile_alone_breaks_the_graph_at_each_key():
    """Negative control: the masks are eager's there, too, but no single graph is."""
    net, plain = Net(), Net()
    fast = torch.compile(net, backend="eager")
    for model in (net, plain):
        set_step(model, 0, seed=1)
    assert torch.allclose(fast(X), plain(X)) and counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["inside", "around", "around, reentrant"])
def test_checkpointing_repeats_the_masks(where):
    """Activation checkpointing around a compiled model, or in it, gives the gradients of the eager model."""
    net, plain = Net(), Net()
    if where == "inside":
        net, plain = Checkpointed(net), Checkpointed(plain)
    # Dynamo keeps no count in a checkpoint
    fast = compiled(net, backend="aot_eager", fullgraph=where != "inside")
    for step in range(2):
        leaves = [X.clone().requires_grad_() for _ in range(2)]
        for model, leaf in zip((fast, plain), leaves, strict=True):
            set_step(model, step, seed=1)
            around = where != "inside" and model is fast
            out = checkpoint(fast, leaf, use_reentrant="reentrant" in where) if around else model(leaf)
            out.square().sum().backward()
        assert torch.allclose(leaves[0].grad, leaves[1].grad, atol=1e-5)
        assert torch.allclose(fast(X), plain(X), atol=1e-6)


def test_a_break_of_the_users_own_keeps_the_count():
    """Layers before, at and after a graph break count their calls together, as in eager."""

    class Broken(Net):
        def forward(self, x):
            h = self.drop(self.first(x))
            torch._dynamo.graph_break()
            return self.last(self.drop(self.call_untraced(h)))

        @torch._dynamo.disable
        def call_untraced(self, h):
            return self.drop(h)

    net, plain = Broken(), Broken()
    fast = compiled(net, backend="aot_eager")
    for model in (net, plain):
        set_step(model, 5, seed=2)
    for _ in range(3):
        assert torch.allclose(fast(X), plain(X), atol=1e-6)


def test_an_error_gives_the_keys_back():
    """After a forward that raises, the layers are as they were, and the next call is the next of the count."""
    net, plain = Net(), Net()
    fast = compiled(net, backend="eager")
    for model in (net, plain):
        set_step(model, 0, seed=1)
    with pytest.raises(Exception, match="shape|size"):
        fast(X[:, :5])
    assert all(layer._compiled_calls is None for _, layer in layers(net))
    assert torch.allclose(fast(X), plain(X), atol=1e-6)


def test_layers_without_a_position_break_the_graph():
    """fullgraph=True refuses layers that draw from torch's generator; own_randomness with a key, or eval mode, cures it."""
    net = Net()
    for _, layer in layers(net):
        layer._keyed_calls = None
    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(net, backend="eager", fullgraph=True)(X)
    own_randomness(net, key=sr.key(3))
    plain = copy.deepcopy(net)
    own_randomness(plain, key=sr.key(3))
    assert torch.allclose(compiled(net, backend="eager", fullgraph=True)(X), plain(X))
    for _, layer in layers(net.eval()):
        layer._keyed_calls = None
    compiled(net, backend="eager", fullgraph=True)(X)
