"""The layers: shapes, scales, formulas and modes; each draws from a fixed key."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import samebits
from samebits.errors import InvalidArgumentError
from samebits.random import _int_keys as int_keys


class Fixed:
    """Mixed in front of a layer: every call has this key."""

    def next_key(self, device):
        return int_keys.to_tensor((7, 0))


def fixed(layer):
    layer.__class__ = type(type(layer).__name__, (Fixed, type(layer)), {})
    return layer


ours = samebits.nn
LAYERS = [
    (ours.Dropout(0.4), nn.Dropout(0.4), (3, 4)),
    (ours.Dropout1d(0.4), nn.Dropout1d(0.4), (3, 4, 5)),
    (ours.Dropout2d(0.4), nn.Dropout2d(0.4), (3, 4, 5, 6)),
    (ours.Dropout3d(0.4), nn.Dropout3d(0.4), (3, 4, 5, 6, 2)),
    (ours.AlphaDropout(0.4), nn.AlphaDropout(0.4), (3, 4)),
    (ours.FeatureAlphaDropout(0.4), nn.FeatureAlphaDropout(0.4), (3, 4, 5)),
    (ours.RReLU(0.1, 0.4), nn.RReLU(0.1, 0.4), (3, 4)),
    (ours.FractionalMaxPool2d(2, 4), nn.FractionalMaxPool2d(2, 4), (2, 3, 9, 9)),
    (ours.FractionalMaxPool3d(2, 4), nn.FractionalMaxPool3d(2, 4), (2, 3, 9, 9, 9)),
]
BY_NAME = pytest.mark.parametrize(
    ("layer", "torchs", "shape"), LAYERS, ids=[type(t).__name__ for _, t, _ in LAYERS]
)


@BY_NAME
def test_a_layer_is_torchs_layer(layer, torchs, shape):
    """Each is a subclass of torch's, with its state_dict, its repr (and the name), its values in eval mode."""
    assert isinstance(layer, type(torchs)) and layer.state_dict() == torchs.state_dict()
    assert repr(layer) == repr(torchs)
    named = ours.Dropout1d(0.1, name="head")
    assert repr(named) == "Dropout1d(p=0.1, inplace=False, name='head')"
    if "Fractional" not in repr(layer):  # those draw in eval mode, as torch's
        x = torch.randn(shape)
        assert torch.equal(layer.eval()(x), torchs.eval()(x))
        layer.train()


@BY_NAME
def test_a_key_is_a_function_of_the_output(layer, torchs, shape):
    """The same key gives the same output and gradient; another key gives others; shape and dtype are torch's."""
    x = torch.randn(shape, requires_grad=True)
    out = fixed(layer)(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    again = layer(x)
    assert torch.equal(out, again) and torch.equal(torch.autograd.grad(again.sum(), x)[0], grad)
    assert out.shape == torchs(x).shape and out.dtype is torchs(x).dtype
    assert layer(x.double()).dtype is torch.float64
    layer.next_key = lambda device: int_keys.to_tensor((8, 0))
    assert not torch.equal(layer(x), out)


@pytest.mark.parametrize(
    ("layer", "shape", "units"),
    [
        (ours.Dropout1d(0.4), (50, 40, 5), 2),
        (ours.Dropout1d(0.4), (2000, 5), 1),
        (ours.Dropout2d(0.4), (50, 40, 5, 6), 2),
        (ours.Dropout3d(0.4), (50, 40, 3, 3, 2), 2),
        (ours.Dropout3d(0.4), (2000, 3, 3, 2), 1),
    ],
)
def test_whole_channels_are_dropped(layer, shape, units):
    """A channel is zero or scaled as a whole; a share p is zero; torch's rule says what a channel is."""
    torch.manual_seed(0)
    # torch's own, as a control of the test
    for chosen in (fixed(layer), getattr(nn, type(layer).__name__)(0.4)):
        out = chosen(torch.ones(shape)).flatten(units)
        assert torch.equal(out.amin(-1), out.amax(-1))
        assert sorted(out.unique().tolist()) == pytest.approx([0.0, 1 / 0.6])
        assert (out[..., 0] == 0).float().mean().item() == pytest.approx(0.4, abs=0.04)


@pytest.mark.parametrize("size", [1, 1000, 1 << 16, (1 << 16) + 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_small_and_large_inputs_have_the_bits_of_random_dropout(size, dtype):
    """Whichever way the mask is kept, output and gradient are those of samebits.random.dropout with the layer's key."""
    x = torch.randn(size, dtype=dtype, requires_grad=True)
    found = []
    for out in (fixed(ours.Dropout(0.3))(x), samebits.random.dropout(int_keys.to_tensor((7, 0)), x, 0.3)):
        found.append((out, *torch.autograd.grad(out.square().sum(), x)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_dropout_drops_no_channels():
    """Negative control: elementwise dropout mixes zeros and others within a channel."""
    out = fixed(ours.Dropout(0.4))(torch.ones(50, 40, 5)).flatten(2)
    assert not torch.equal(out.amin(-1), out.amax(-1))


def test_shapes_are_refused_as_torch_does():
    """Wrong numbers of dimensions raise torch's error, or warn as torch does; one dimension has no channels."""
    with pytest.raises(RuntimeError, match="Expected 2D or 3D"):
        ours.Dropout1d()(torch.ones(1, 2, 3, 4))
    with pytest.warns(UserWarning, match="dropout2d: Received a 3D"):
        fixed(ours.Dropout2d())(torch.ones(1, 2, 3))
    with pytest.warns(UserWarning, match="dropout3d"):
        fixed(ours.Dropout3d())(torch.ones(1, 2, 3))
    with pytest.warns(UserWarning), pytest.raises(InvalidArgumentError, match="2 dimensions"):
        ours.Dropout2d()(torch.ones(3))
    with pytest.raises(InvalidArgumentError, match="2 dimensions"):
        ours.FeatureAlphaDropout()(torch.ones(3))


@pytest.mark.parametrize("layer", [ours.AlphaDropout(0.3), ours.FeatureAlphaDropout(0.3)])
def test_alpha_dropout_keeps_mean_and_variance(layer):
    """Standard normal input keeps mean 0 and variance 1; dropped elements are a multiple of SELU's saturation value."""
    x = torch.randn(
        400, 500, 2 if "Feature" in repr(layer) else 1, generator=torch.Generator().manual_seed(1)
    )
    out = fixed(layer)(x)
    assert out.mean().item() == pytest.approx(0, abs=0.02) and out.std().item() == pytest.approx(1, abs=0.02)
    alpha = 1.7580993408473766
    scale = 1 / math.sqrt((alpha**2 * 0.3 + 1) * 0.7)
    dropped = out.sub(alpha * scale * (0.3 - 1)).abs() < 1e-6
    assert dropped.float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert torch.allclose(out[~dropped], x[~dropped] * scale + alpha * scale * 0.3, atol=1e-6)
    plain = fixed(ours.Dropout(0.3))(x)  # negative control
    assert plain.std().item() > 1.1


def test_gaussian_noise():
    """Adds noise of the standard deviation, in place if asked; none in eval mode; std is checked, also later."""
    layer = fixed(ours.GaussianNoise(0.5))
    x = torch.full((100, 500), 3.0, requires_grad=True)
    out = layer(x)
    assert out.mean().item() == pytest.approx(3, abs=0.01) and out.std().item() == pytest.approx(
        0.5, abs=0.01
    )
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], torch.ones_like(x))
    y = torch.full((100, 500), 3.0)
    inplace = fixed(ours.GaussianNoise(0.5, inplace=True))
    assert inplace(y) is y and torch.equal(y, out)
    assert layer.eval()(x) is x
    assert repr(ours.GaussianNoise(0.5, name="n")) == "GaussianNoise(std=0.5, inplace=False, name='n')"
    layer.train().std = -1.0
    with pytest.raises(InvalidArgumentError, match="std = -1.0"):
        layer(x)
    with pytest.raises(InvalidArgumentError):
        ours.GaussianNoise(math.nan)


@pytest.mark.parametrize("mode", ["row", "batch"])
def test_stochastic_depth(mode):
    """Rows (or the whole batch) are zeroed with probability p, the others scaled by 1 / (1 - p), as torchvision's."""
    layer = fixed(ours.StochasticDepth(0.25, mode))
    rows = []
    for number in range(20 if mode == "row" else 800):
        layer.next_key = lambda device, number=number: int_keys.to_tensor((number + 10_000, 0))
        out = layer(torch.ones(100 if mode == "row" else 2, 3, 2)).flatten(1)
        assert torch.equal(out.amin(1), out.amax(1))
        rows.append(out[:, 0])
    kept = torch.stack(rows)
    assert sorted(kept.unique().tolist()) == pytest.approx([0, 1 / 0.75])
    assert (kept == 0).float().mean().item() == pytest.approx(0.25, abs=0.04)
    assert (kept.std(1) == 0).all() == (mode == "batch")
    assert layer.eval()(kept) is kept
    with pytest.raises(InvalidArgumentError, match="mode is"):
        ours.StochasticDepth(0.5, "rows")
    with pytest.raises(InvalidArgumentError, match="p = 2"):
        ours.StochasticDepth(2)


def test_rrelu_follows_torchs_formula():
    """Slopes are uniform in [lower, upper); backward multiplies by them; positive elements pass."""
    x = torch.linspace(-1, 1, 100_000, requires_grad=True)
    out = fixed(ours.RReLU(0.2, 0.6))(x)
    (grad,) = torch.autograd.grad(out.sum(), x)
    below = x <= 0
    assert torch.equal(out, x * grad) and (grad[~below] == 1).all()
    slopes = grad[below]
    assert slopes.min() >= 0.2 and slopes.max() < 0.6
    assert slopes.mean().item() == pytest.approx(0.4, abs=0.005)
    assert slopes.std().item() == pytest.approx(0.4 / math.sqrt(12), abs=0.005)
    y = x.detach().clone()
    assert fixed(ours.RReLU(0.2, 0.6, inplace=True))(y) is y and torch.equal(y, out)


def test_fractional_pooling_is_torchs_with_the_same_samples():
    """The output is torch's for samples of the key; samples that the user gave win; unbatched input works."""
    x = torch.randn(2, 3, 9, 9)
    layer = fixed(ours.FractionalMaxPool2d(2, output_ratio=0.5, return_indices=True))
    samples = samebits.random.uniform(int_keys.to_tensor((7, 0)), 2, 3, 2)
    expected = F.fractional_max_pool2d(
        x, 2, output_ratio=(0.5, 0.5), return_indices=True, _random_samples=samples
    )
    assert all(torch.equal(a, b) for a, b in zip(layer(x), expected, strict=True))
    given = torch.rand(2, 3, 2)
    own = ours.FractionalMaxPool2d(2, output_ratio=0.5, _random_samples=given)
    assert torch.equal(own(x), nn.FractionalMaxPool2d(2, output_ratio=0.5, _random_samples=given)(x))
    assert fixed(ours.FractionalMaxPool3d(2, 3))(torch.randn(3, 8, 8, 8)).shape == (3, 3, 3, 3)


@pytest.mark.parametrize(
    "kind",
    [
        ours.Dropout,
        ours.Dropout1d,
        ours.Dropout2d,
        ours.Dropout3d,
        ours.AlphaDropout,
        ours.FeatureAlphaDropout,
    ],
)
@pytest.mark.filterwarnings("ignore:dropout")
def test_p_is_read_and_checked_at_each_call(kind):
    """p may be changed; 0 is identity, 1 gives zeros; what is no probability raises in the call too."""
    layer, x = kind(0.5, name="a"), torch.randn(4, 3, 5)
    layer.p = 0
    assert layer(x) is x
    layer.p = 1.0
    assert torch.equal(layer(x), torch.zeros_like(x))
    for wrong in (-0.1, 1.1, math.nan):
        layer.p = wrong
        with pytest.raises(InvalidArgumentError, match="a probability"):
            layer(x)
    with pytest.raises(ValueError):
        kind(2.0)


def test_inplace():
    """In-place layers change their input, with the out-of-place values; alpha dropout never does, as torch's."""
    for kind in (ours.Dropout, ours.Dropout2d):
        x = torch.randn(4, 3, 5, 5)
        expected = fixed(kind(0.5))(x)
        assert fixed(kind(0.5, inplace=True))(x) is x and torch.equal(x, expected)
    x = torch.randn(100)
    before = x.clone()
    fixed(ours.AlphaDropout(0.5, inplace=True))(x)
    assert torch.equal(x, before)
