"""A capture runs the step to read it: whatever the step does to what it closes over, the caller finds it as it was."""

import logging
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.replica import PerRank, capture

logging.getLogger("torch.__trace").propagate = False
X = torch.ones(3, 4)
COUNT = 0


class World:
    """Everything that a training script has, and a step that changes all of it."""

    def __init__(self, optimizer, **options):
        self.model = nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2))
        self.model.register_buffer("seen", torch.zeros(()))
        self.optimizer = optimizer(self.model.parameters(), lr=0.1, **options)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        self.generator = torch.Generator().manual_seed(3)
        self.python, self.numpy, self.legacy = (
            random.Random(1),
            np.random.default_rng(1),
            np.random.RandomState(1),
        )
        self.losses, self.names, self.last = [], set(), None

    def step(self, x):
        global COUNT
        COUNT += 1
        self.generator.manual_seed(len(self.losses))
        self.model.train(not self.model.training)
        self.model.seen += 1
        self.last = self.model(x + torch.rand(3, 4, generator=self.generator)).square().sum()
        self.last.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(self.last)
        self.names.add(f"step {len(self.losses)}")
        self.python.random(), self.numpy.random(), self.legacy.rand()
        random.random(), np.random.rand()

    def state(self):
        """Values, and the objects themselves where a copy would hide that they were exchanged."""
        own = (self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict(), self.last)
        held = [*self.model.parameters(), *self.model.buffers(), *(p.grad for p in self.model.parameters())]
        drawn = (
            self.generator.get_state().tolist(),
            self.python.getstate(),
            self.numpy.bit_generator.state,
            self.legacy.get_state(),
        )
        process = (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state(), COUNT)
        modes = [part.training for part in self.model.modules()]
        more = (modes, list(self.losses), set(self.names), list(map(id, held)))
        return repr((own, drawn, process, more))


STEPS = {
    "captured": (torch.optim.SGD, {}, None),
    "an optimizer without state": (torch.optim.SGD, {"momentum": 0.9}, "SGD makes its state"),
    "another": (torch.optim.AdamW, {}, "AdamW makes its state"),
}


@pytest.mark.parametrize("what", STEPS)
def test_nothing_of_the_callers_is_changed(what):
    """Weights, .grad, modes, optimizer, scheduler, generators, counters and lists are as before, captured or refused."""
    optimizer, options, said = STEPS[what]
    world = World(optimizer, **options)
    before = world.state()

    def step(x):
        world.step(x)
        world.optimizer.zero_grad()

    if said is None:
        capture(step, X, world_size=2)
    else:
        with pytest.raises(UnimplementedError, match=f"closes over world.optimizer, and {said}"):
            capture(step, X, world_size=2)
    assert world.state() == before
    world.step(X)  # control: what the step itself does is seen
    assert world.state() != before and not isinstance(world.last, torch._subclasses.FakeTensor)


def test_a_step_that_raises_leaves_nothing():
    """An error of the user's, in the middle of a step, leaves no gradient and no count either."""
    world = World(torch.optim.SGD)
    before, calls = world.state(), 0

    def step(x):
        nonlocal calls
        calls += 1
        world.step(x)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(step, X, world_size=2)
    assert (world.state(), calls) == (before, 0)


def test_every_rank_starts_with_the_same_counters():
    """A count that a step keeps is the same on all ranks, as in a run: equal; a number of Python's generator is not."""
    count = [0.0]

    def counted(w):
        count[0] += 1
        return w * count[0]

    assert not capture(counted, X, world_size=2).by_rank
    assert capture(lambda w: w * random.random(), X, world_size=2).by_rank
    assert count == [0.0]


def test_a_model_that_is_there_before_is_not_sharded_nor_stepped():
    """A PerRank that gives the caller's own model is refused, and neither class, parameters, hooks nor weights are changed."""
    model = nn.Linear(4, 2)
    weight, kind, table = model.weight, type(model), repr(vars(model))
    value = weight.detach().clone()

    def make(mesh):
        sharded = fully_shard(model, mesh=mesh)
        return sharded, torch.optim.AdamW(sharded.parameters(), weight_decay=0.5)

    with pytest.raises(InvalidArgumentError, match="existed before"):
        capture(lambda made, x: made[0](x), PerRank(make), X, mesh={"dp": 2})
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    with pytest.raises(InvalidArgumentError, match="existed before"):
        capture(lambda made, x: made[0](x), PerRank(lambda mesh: (model, optimizer)), X, mesh={"dp": 2})
    assert model.weight is weight and torch.equal(weight, value) and type(model) is kind
    assert repr(vars(model)) == table and not optimizer.state and weight.grad is None
    assert model(X).shape == (3, 2)
