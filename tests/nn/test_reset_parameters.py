"""`reset_parameters`: weights by name, whatever the order of construction."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import samebits
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.nn import reset_parameters

KEY = samebits.random.key(1)


class Users(nn.Module):
    """A user's module: its own draws from torch, NumPy and Python."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.empty(3)), nn.Parameter(torch.empty(2))
        self.table = nn.Parameter(torch.empty(4, 4))
        self.register_buffer("seen", torch.empty(2))
        self.reset_parameters()

    def reset_parameters(self):
        self.scale.data.normal_(0, np.random.rand())
        self.shift.data.copy_(torch.tensor([random.random(), np.random.rand()]))
        nn.init.orthogonal_(self.table)
        self.seen.uniform_()


PARTS = {
    "linear": lambda: nn.Linear(4, 5),
    "conv": lambda: nn.Conv2d(2, 3, 3),
    "bn": lambda: nn.BatchNorm1d(4),
    "ln": lambda: nn.LayerNorm(4),
    "embedding": lambda: nn.Embedding(7, 4, padding_idx=0),
    "lstm": lambda: nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2),
    "mha": lambda: nn.MultiheadAttention(4, 2, kdim=3, add_bias_kv=True),
    "transformer": lambda: nn.Transformer(4, 2, 1, 1, 8, batch_first=True),
    "bilinear": lambda: nn.Bilinear(2, 3, 4),
    "prelu": lambda: nn.PReLU(3),
    "users": Users,
    "same": lambda: nn.Linear(4, 5),
}


def build(names, seed=0):
    torch.manual_seed(seed)
    model = nn.ModuleDict()
    for name in names:
        model[name] = PARTS[name]()
    return model


def state(names, seed=0, key=KEY):
    model = build(names, seed)
    reset_parameters(model, key)
    return model.state_dict()


def agree(a, b):
    """Whether all entries that both have are equal."""
    return all(torch.equal(a[name], b[name]) for name in a.keys() & b.keys())


def test_weights_do_not_depend_on_the_order_of_construction():
    """Another order, missing siblings, another seed of the process: every parameter and buffer of a name has equal bits."""
    names = list(PARTS)
    whole = state(names)
    assert agree(state(names[::-1], seed=1), whole)
    for name in names:
        assert agree(state([name], seed=2), whole)
    plain = build(names).state_dict()
    assert not agree(build(names[::-1]).state_dict(), plain)  # negative control: torch's plain construction


def test_other_names_and_other_keys_have_other_weights():
    """Two layers of one shape differ, and so do two keys; constants stay constants."""
    whole, other = state(list(PARTS)), state(list(PARTS), key=samebits.random.key(2))
    assert not torch.equal(whole["linear.weight"], whole["same.weight"])
    for name, value in whole.items():
        constant = value.numel() == 0 or (value == value.flatten()[0]).all() or value.dtype is torch.int64
        assert torch.equal(value, other[name]) == bool(constant), name


def test_the_schemes_are_torchs():
    """Bounds, constants and shapes of the draws are those of each module's own construction."""
    model = nn.ModuleDict(
        {"a": nn.Linear(100, 400), "e": nn.Embedding(500, 100, padding_idx=3), "l": nn.LSTM(9, 100)}
    )
    model["t"] = nn.Transformer(16, 2, 1, 1, 64, batch_first=True)
    model["bn"] = nn.BatchNorm1d(4)
    model["bn"].running_mean += 7
    reset_parameters(model, KEY)
    bound = 100**-0.5
    assert model["a"].weight.abs().max() <= bound and model["a"].weight.std().item() == pytest.approx(
        bound / 3**0.5, rel=0.02
    )
    assert model["e"].weight.std().item() == pytest.approx(1, abs=0.02) and not model["e"].weight[3].any()
    assert all(w.abs().max() <= 0.1 for w in model["l"].parameters())
    first = model["t"].encoder.layers[0]
    assert first.linear1.weight.abs().max() <= (6 / 80) ** 0.5 and not first.self_attn.in_proj_bias.any()
    assert not model["bn"].running_mean.any() and (model["bn"].weight == 1).all()


def test_the_numbers_are_those_of_torchs_generator_filled_from_the_name():
    """One parameter's weights are torch.nn.init on a generator filled from (key, name, number of the draw)."""
    from samebits.nn import _reset_parameters as initialisation
    from samebits.random import _int_keys as int_keys
    from samebits.random._process import generator_states

    model = nn.Sequential(nn.Linear(4, 5))
    reset_parameters(model, KEY)
    expected = torch.empty(5, 4)
    root = int_keys.fold(int_keys.from_tensor(KEY), initialisation._INITIAL)
    with generator_states.preserve_states():
        generator_states.fill(int_keys.fold(root, initialisation._PARAMETER, "0.weight", 0))
        nn.init.kaiming_uniform_(expected, a=5**0.5)
    assert torch.equal(model[0].weight, expected)


def test_orthogonal_stays_orthogonal_and_truncated_normal_in_bounds():
    """Schemes that draw into scratch tensors or reject keep their property, and depend on the path alone."""

    class Schemes(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.t, self.s = (nn.Parameter(torch.empty(6, 6)) for _ in range(3))
            self.reset_parameters()

        def reset_parameters(self):
            nn.init.orthogonal_(self.q)
            nn.init.trunc_normal_(self.t, std=2.0, a=-1.0, b=1.0)
            nn.init.sparse_(self.s, 0.5)

    a, b = nn.ModuleDict({"x": Schemes()}), nn.ModuleDict({"y": nn.Linear(2, 2), "x": Schemes()})
    for model in (a, b):
        reset_parameters(model, KEY)
    assert agree(a.state_dict(), b.state_dict())
    assert torch.allclose(a["x"].q @ a["x"].q.T, torch.eye(6), atol=1e-5)
    assert a["x"].t.abs().max() <= 1 and a["x"].t.std() > 0.3
    assert ((a["x"].s == 0).sum(0) == 3).all()


def test_the_callers_generators_stay():
    """torch, NumPy and Python draw afterwards what they would have drawn."""
    model = build(["linear", "users", "transformer"])
    before = samebits.random._process.generator_states.digest()
    reset_parameters(model, KEY)
    assert samebits.random._process.generator_states.digest() == before
    model["users"].reset_parameters()  # negative control
    assert samebits.random._process.generator_states.digest() != before


def test_a_tied_parameter_goes_by_its_first_name():
    """A tied weight is drawn by the module of its first path only, and other parameters of the second are set."""

    def tied(data_only):
        model = nn.ModuleDict({"embedding": nn.Embedding(6, 4), "head": nn.Linear(4, 6)})
        if data_only:
            model["head"].weight.data = model["embedding"].weight.data
        else:
            model["head"].weight = model["embedding"].weight
        reset_parameters(model, KEY)
        return model

    alone = nn.ModuleDict({"embedding": nn.Embedding(6, 4)})
    reset_parameters(alone, KEY)
    for data_only in (False, True):
        model = tied(data_only)
        assert torch.equal(model["embedding"].weight, alone["embedding"].weight)
        assert model["head"].weight.data_ptr() == model["embedding"].weight.data_ptr()


def test_a_parameter_that_no_scheme_sets_is_named_before_anything_is_changed():
    """An error with the cure; nothing has moved; `keep` allows it; an unknown name in keep is an error."""

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.randn(3))
            self.part = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), Users())

    model = Bare()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    digest = samebits.random._process.generator_states.digest()
    with pytest.raises(InvalidArgumentError, match="sets token") as caught:
        reset_parameters(model, KEY)
    assert "keep=" in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert samebits.random._process.generator_states.digest() == digest
    with pytest.raises(InvalidArgumentError, match="names no parameter.*: tokens"):
        reset_parameters(model, KEY, keep=["tokens"])
    reset_parameters(model, KEY, keep=["token"])
    assert torch.equal(model.token, before["token"]) and not torch.equal(
        model.part[0].weight, before["part.0.weight"]
    )


def test_a_scheme_that_makes_new_parameters():
    """A reset that assigns new parameters, or new data, counts as setting them, by the module's path."""

    class Assigns(nn.Module):
        def __init__(self):
            super().__init__()
            self.other = nn.Parameter(torch.empty(2))
            self.reset_parameters()

        def reset_parameters(self):
            self.weight = nn.Parameter(torch.randn(3))
            self.other.data = torch.randn(2)

    a, b = nn.ModuleDict({"x": Assigns()}), nn.ModuleDict({"y": nn.Linear(2, 2), "x": Assigns()})
    for model in (a, b):
        reset_parameters(model, KEY)
    assert agree(a.state_dict(), b.state_dict()) and a["x"].weight.requires_grad


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_what_cannot_be_reset_is_refused():
    """Lazy and meta parameters, parametrized and scripted modules raise with the cure."""
    with pytest.raises(InvalidArgumentError, match="lazy"):
        reset_parameters(nn.Sequential(nn.LazyLinear(3)), KEY)
    with pytest.raises(InvalidArgumentError, match="to_empty"):
        reset_parameters(nn.Linear(2, 2, device="meta"), KEY)
    with pytest.raises(InvalidArgumentError, match="parametrize afterwards"):
        reset_parameters(weight_norm(nn.Linear(2, 2)), KEY)
    with pytest.raises(UnimplementedError, match="TorchScript"):
        reset_parameters(torch.jit.script(nn.Linear(2, 2)), KEY)
    with pytest.raises(InvalidArgumentError, match="a key"):
        reset_parameters(nn.Linear(2, 2), torch.zeros(2))


def test_it_works_under_op_determinism_without_a_seed(monkeypatch):
    """The key is the seed: an unseeded process under the switch may reset."""
    torch.default_generator.manual_seed(2**40)
    monkeypatch.setattr(samebits._context.at_import, "torch_seed", 2**40)  # as if no process had been seeded
    model = nn.Linear(4, 5, device="meta").to_empty(device="cpu")
    torch.default_generator.manual_seed(2**40)
    samebits.enable_op_determinism()
    reset_parameters(model, KEY)
