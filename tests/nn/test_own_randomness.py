"""`own_randomness`: what is replaced, what stays, what is refused."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

import samebits
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.nn import OwnsRandomness, own_randomness, set_step


class Net(nn.Module):
    """One of each."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.Dropout2d(0.3), nn.FractionalMaxPool2d(2, output_size=4)
        )
        self.act = nn.RReLU()
        self.drops = nn.ModuleList([nn.Dropout(0.3), nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)])
        self.rnn = nn.LSTM(16, 8, 2, dropout=0.3, batch_first=True)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)

    def forward(self, x):
        x = self.act(self.conv(x)).flatten(2)
        for drop in self.drops:
            x = drop(x)
        return self.encoder(self.rnn(x)[0])


def net(seed=0):
    torch.manual_seed(seed)
    return Net()


X = torch.randn(2, 1, 11, 11, generator=torch.Generator().manual_seed(1))


def test_every_random_layer_is_replaced_in_place():
    """The module, its parameters and its state_dict stay; each of torch's random layers owns its randomness."""
    plain = net()
    parameters, keys = list(plain.parameters()), list(plain.state_dict())
    assert own_randomness(plain) is plain
    assert all(a is b for a, b in zip(plain.parameters(), parameters, strict=True))
    assert list(plain.state_dict()) == keys
    random_kinds = (
        nn.modules.dropout._DropoutNd,
        nn.RReLU,
        nn.FractionalMaxPool2d,
        nn.MultiheadAttention,
        nn.LSTM,
    )
    found = [part for part in plain.modules() if isinstance(part, random_kinds)]
    assert len(found) == 15 and all(isinstance(part, OwnsRandomness) for part in found)
    assert own_randomness(plain) is plain  # again: harmless


def test_checkpoints_load_both_ways():
    """A checkpoint of the plain model loads strictly into the replaced one, and back."""
    plain, own = net(0), own_randomness(net(1))
    file = io.BytesIO()
    torch.save(plain.state_dict(), file)
    file.seek(0)
    own.load_state_dict(torch.load(file), strict=True)
    assert torch.equal(own.rnn.weight_hh_l1, plain.rnn.weight_hh_l1)
    net(2).load_state_dict(own.state_dict(), strict=True)


def test_eval_mode_has_the_bits_of_the_plain_model():
    """Without training nothing changes: outputs are torch's, the encoder's fast path included."""
    plain, own = net().eval(), own_randomness(net()).eval()
    samples = torch.rand(2, 4, 2)
    for model in (plain, own):
        model.conv[2]._random_samples = samples  # this one draws in eval mode too
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert torch.equal(plain(X), own(X))


def test_training_is_a_function_of_the_step():
    """Losses of a replaced model do not depend on other draws; those of the plain model do (negative control)."""

    def outputs(convert, noise):
        model = own_randomness(net()) if convert else net()
        out = []
        for step in range(2):
            if convert:
                set_step(model, step, seed=2)
            torch.rand(noise)
            out.append(model(X))
        return torch.stack(out)

    assert torch.equal(outputs(True, 0), outputs(True, 5))
    assert not torch.equal(outputs(False, 0), outputs(False, 5))


def test_hooks_optimizers_and_requires_grad_survive():
    """A hook set before fires after; an optimizer made before trains the same parameters; frozen ones stay frozen."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.rnn.weight_ih_l0.requires_grad_(False)
    fired = []
    model.drops[0].register_forward_hook(lambda *args: fired.append("drop"))
    model.rnn.register_forward_pre_hook(lambda *args: fired.append("rnn"))
    own_randomness(model, key=samebits.random.key(1))
    before = copy.deepcopy(model.state_dict())
    model(X).square().sum().backward()
    optimizer.step()
    assert fired == ["drop", "rnn"]
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert "rnn.weight_hh_l1" in changed and "rnn.weight_ih_l0" not in changed


def test_parametrizations_survive():
    """A parametrized module stays parametrized, before and after; removing it leaves our class."""
    model = nn.Sequential(nn.MultiheadAttention(4, 2, dropout=0.5), nn.LSTM(4, 4, 2, dropout=0.5))
    weight_norm(model[0], "in_proj_weight")
    spectral_norm(model[0].out_proj, "weight")
    keys = list(model.state_dict())
    own_randomness(model)
    assert is_parametrized(model[0]) and list(model.state_dict()) == keys
    x = torch.randn(3, 2, 4)
    weight_norm(model[1], "weight_hh_l0")
    set_step(model, 0, seed=1)
    model[1](model[0](x, x, x)[0])[0].sum().backward()
    assert model[0].parametrizations.in_proj_weight.original0.grad is not None
    remove_parametrizations(model[0], "in_proj_weight")
    remove_parametrizations(model[1], "weight_hh_l0")
    assert type(model[0]) is samebits.nn.MultiheadAttention and type(model[1]) is samebits.nn.LSTM


class Logged(nn.Dropout):
    """A user's subclass without a forward of its own."""

    def twice_p(self):
        return 2 * self.p


class Own(nn.Dropout):
    """A user's subclass that draws by itself."""

    def forward(self, x):
        return x * (torch.rand_like(x) > self.p)


def test_subclasses_of_the_user():
    """One without a forward of its own is replaced and keeps its methods; one with its own is named in a warning."""
    model = nn.Sequential(Logged(0.5), nn.Sequential(Own(0.5)), nn.Dropout(0.5))
    model[2].forward = torch.rand_like
    with pytest.warns(UserWarning, match=r"1\.0 \(Own, a Dropout\), 2 \(Dropout"):
        own_randomness(model)
    assert isinstance(model[0], OwnsRandomness) and isinstance(model[0], Logged) and model[0].twice_p() == 1.0
    assert type(model[1][0]) is Own
    twin = copy.deepcopy(model)
    set_step(model, 0, seed=1)
    set_step(twin, 0, seed=1)
    x = torch.ones(100)
    assert torch.equal(model[0](x), twin[0](x))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own_randomness(nn.Sequential(samebits.nn.Dropout(0.5)))  # already ours


def test_a_shared_layer_is_keyed_by_its_first_path():
    """One instance at two places is replaced once, and its key is that of the first path."""
    layer = nn.Dropout(0.5)
    model = own_randomness(nn.ModuleDict({"a": layer, "b": layer}), key=samebits.random.key(1))
    alone = own_randomness(nn.ModuleDict({"a": nn.Dropout(0.5)}), key=samebits.random.key(1))
    x = torch.ones(100)
    assert torch.equal(model["b"](x), alone["a"](x)) and not torch.equal(model["a"](x), model["b"](x))


def test_clones_of_a_layer_with_a_key_are_refused_until_the_model_has_one():
    """nn.TransformerEncoder deepcopies its layer: six copies of one key would draw six equal masks."""
    layer = own_randomness(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), key=samebits.random.key(1))
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 3, 4)
    with pytest.raises(InvalidArgumentError, match="is a copy"):
        encoder(x)
    own_randomness(encoder, key=samebits.random.key(1))
    assert not torch.equal(encoder.layers[0].dropout(x), encoder.layers[1].dropout(x))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_what_cannot_be_replaced_is_refused_before_anything_is_changed():
    """Scripted, compiled and quantized parts raise, named by path; the rest of the model is untouched."""
    compiled = nn.Linear(2, 2)
    compiled.compile(backend="eager")
    parts = {
        "TorchScript": torch.jit.script(nn.Sequential(nn.Dropout(0.5))),
        "compiled already": torch.compile(nn.Dropout(0.5), backend="eager"),
        "is compiled": compiled,
        "quantized": torch.ao.nn.quantizable.MultiheadAttention(4, 2),
    }
    for message, part in parts.items():
        model = nn.Sequential(nn.Dropout(0.5), part)
        with pytest.raises(UnimplementedError, match=f"1 .*{message}"):
            own_randomness(model)
        assert type(model[0]) is nn.Dropout
    model = nn.Sequential(nn.Dropout(0.5))
    with pytest.raises(InvalidArgumentError, match="a key"):
        own_randomness(model, key=torch.zeros(2))
    assert type(model[0]) is nn.Dropout


def test_a_replaced_model_is_saved_and_loaded_whole():
    """torch.save of the module itself works: its classes can be imported."""
    file = io.BytesIO()
    torch.save(own_randomness(net()), file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False).rnn.weight_hh_l0, net().rnn.weight_hh_l0)
