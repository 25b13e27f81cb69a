import pytest
import torch
from torch import nn

import samebits
from samebits._context import Position, process
from samebits.errors import InvalidArgumentError


@pytest.fixture(autouse=True)
def in_a_run():
    samebits.set_random_seed(3)
    process.run_key = (17, 0)
    process.position = Position("train", 0, 0, 5)


def masks(layer, calls=1, size=1000):
    return [layer(torch.ones(size)) for _ in range(calls)]


def test_the_mask_depends_on_the_position_alone():
    """The same step gives the same mask, whatever else drew in between; another step or layer gives another."""
    (first,) = masks(samebits.nn.Dropout(0.5, name="a"))
    torch.rand(100)
    layer = samebits.nn.Dropout(0.5, name="a")
    assert torch.equal(masks(layer)[0], first)
    assert not torch.equal(masks(samebits.nn.Dropout(0.5, name="b"))[0], first)
    process.position = Position("train", 0, 0, 6)
    assert not torch.equal(masks(layer)[0], first)


def test_torchs_mask_depends_on_what_else_drew():
    """Negative control: torch's Dropout gives another mask after another draw."""
    torch.manual_seed(0)
    (first,) = masks(nn.Dropout(0.5))
    torch.manual_seed(0)
    torch.rand(1)
    assert not torch.equal(masks(nn.Dropout(0.5))[0], first)


def test_two_calls_in_a_step_have_two_masks_and_repeat_in_a_replay():
    """A layer used twice in a step draws two masks, and the same two when the step is replayed."""
    layer = samebits.nn.Dropout(0.5, name="a")
    a, b = masks(layer, 2)
    assert not torch.equal(a, b)
    again = masks(samebits.nn.Dropout(0.5, name="a"), 2)
    assert torch.equal(again[0], a) and torch.equal(again[1], b)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_and_the_scale(p):
    """A share p is zeroed, the rest scaled by 1 / (1 - p); the mean stays."""
    (out,) = masks(samebits.nn.Dropout(p, name="a"), size=200_000)
    assert (out == 0).float().mean().item() == pytest.approx(p, abs=0.01)
    assert sorted(out.unique().tolist()) == pytest.approx([0.0, 1 / (1 - p)])


def test_the_gradient_has_the_mask():
    """Backward passes through the kept elements with the same scale."""
    x = torch.ones(1000, requires_grad=True)
    out = samebits.nn.Dropout(0.5, name="a")(x)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


def test_edges():
    """p = 0, p = 1, eval mode and inplace are as torch's."""
    x = torch.randn(100)
    assert torch.equal(samebits.nn.Dropout(0.0, name="a")(x), x)
    assert torch.equal(samebits.nn.Dropout(1.0, name="a")(x), torch.zeros(100))
    assert torch.equal(samebits.nn.Dropout(0.5, name="a").eval()(x), x)
    y = x.clone()
    assert samebits.nn.Dropout(0.5, inplace=True, name="a")(y) is y


def test_outside_a_run_it_draws_from_the_default_generator():
    """Without a run the mask follows torch's seed, as torch's Dropout does."""
    process.position = process.run_key = None
    layer = samebits.nn.Dropout(0.5)
    torch.manual_seed(1)
    a, b = masks(layer, 2)
    torch.manual_seed(1)
    assert torch.equal(masks(layer)[0], a) and not torch.equal(a, b)


def test_a_layer_that_the_run_does_not_know_is_refused():
    """In a run, a layer without a path raises, and says how to give it one."""
    with pytest.raises(InvalidArgumentError, match="Run\\(model=model\\)"):
        samebits.nn.Dropout(0.5)(torch.ones(3))


def test_run_names_the_layers_by_path(tmp_path):
    """Run gives each layer its path in the model; state_dicts stay those of torch's Dropout."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(samebits.nn.Dropout(0.5)))
    samebits.Run(tmp_path, model=model)
    assert model[1][0].layer_name == "model.1.0"
    assert list(model.state_dict()) == ["0.weight", "0.bias"]
