"""Buffers under shards: each shard begins with those of the step, and those that shard 0 leaves count on all ranks."""

import pytest
import torch
from torch import nn

import samebits
import shard_programs as programs
from samebits.errors import UnimplementedError

pytestmark = pytest.mark.usefixtures("one_thread")


class Counting(nn.Module):
    """Buffers of all kinds: written in place, replaced, not persistent, without dimensions, large and constant."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("last", torch.zeros(108), persistent=False)
        self.register_buffer("flags", torch.zeros(4, dtype=torch.bool))
        self.register_buffer("table", torch.arange(40000.0))
        self.register_buffer("absent", None)

    def forward(self, x):
        self.count += 1
        self.seen = self.seen + x.flatten(1)[:, :3].sum(0)
        self.last.copy_(x.flatten(1)[0])
        self.flags ^= x.flatten(1)[0, :4] > 0
        return x * (1 + self.seen[0] / 1000) + self.last.view(3, 6, 6) / 100


def net():
    torch.manual_seed(1)
    linear = nn.utils.parametrizations.spectral_norm(nn.Linear(108, 4))
    return nn.Sequential(Counting(), nn.BatchNorm2d(3), nn.Flatten(), linear)


def train(epochs=2):
    samebits.set_random_seed(1)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with samebits.Run(None, model=model, optimizer=optimizer) as run:
        for _, shards in run.steps(programs.loader(), epochs=epochs, shards=programs.SHARDS):
            for images, labels, _ in shards:
                nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [value.tolist() for value in (*model.parameters(), *model.buffers())]


def by_hand(epochs=2):
    """The rule, written out for one process."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = programs.loader()
    for _ in range(epochs):
        for images, labels, _ in batches:
            before = {name: value.clone() for name, value in model.named_buffers()}
            after = {}
            for shard in range(programs.SHARDS):
                for name, value in model.named_buffers():
                    value.copy_(before[name])
                rows = slice(shard, None, programs.SHARDS)
                nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
                if shard == 0:
                    after = {name: value.clone() for name, value in model.named_buffers()}
            for name, value in model.named_buffers():
                value.copy_(after[name])
            optimizer.step()
            optimizer.zero_grad()
    return [value.tolist() for value in (*model.parameters(), *model.buffers())]


@pytest.mark.parametrize("world_size", [1, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_shard_0_leaves_the_buffers(world_size, ranks):
    """A counter, a replaced buffer, BatchNorm, spectral norm: the rule by hand has the same bits at each size."""
    samebits.set_random_seed(1)
    values, _ = ranks(world_size, train)
    assert values == [by_hand()] * world_size
    assert values[0][-1] != 0


def test_control_without_the_rule_buffers_differ(ranks):
    """Each rank counts its own shards if nothing puts the buffers back: the comparison can fail."""
    values, _ = ranks(2, without_rule)
    assert values[0] != by_hand()


def without_rule():
    from samebits.distributed._buffers import Buffers

    Buffers.end_shard = lambda self, number: None
    return train()


class Growing(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.zeros(0))
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        self.rows = torch.cat([self.rows, x.flatten()[:1]])
        return x.sum() * self.weight


def grow():
    samebits.set_random_seed(1)
    model = Growing()
    with samebits.Run(None, model=model) as run, pytest.raises(UnimplementedError, match="model.rows"):
        for _, shards in run.steps(programs.loader(), epochs=1, shards=6):
            for images, _, _ in shards:
                model(images).backward()
    return True


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_buffer_that_grows_is_refused_by_name(world_size, ranks):
    """It cannot have a shape of its own in each shard: all ranks raise."""
    assert ranks(world_size, grow)[0] == [True] * world_size
