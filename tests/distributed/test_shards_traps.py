"""Programs that lost the promise of shards once: each ends with one digest at any number of ranks, or with a clear error."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import samebits
import shard_programs as programs
from samebits import _digest as digest
from samebits.errors import InvalidArgumentError

pytestmark = pytest.mark.usefixtures("one_thread")


def train(body, net=None, epochs=2, run_dir=None, after=None, **objects):
    """A run by shards; returns the digest of its weights, buffers and of what `after` returns."""
    samebits.set_random_seed(1)
    torch.manual_seed(1)
    net = net or nn.Sequential(nn.Flatten(), nn.Linear(108, 9), nn.ReLU(), nn.Linear(9, 4))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with samebits.Run(run_dir, save=2, **{"net": net, "optimizer": optimizer, **objects}) as run:
        for step, shards in run.steps(programs.loader(), epochs=epochs, shards=programs.SHARDS):
            body(run, step, shards, net, optimizer)
        more = after(run, net) if after else None
    return digest.of_value([net.state_dict(), more])


def usual(run, step, shards, net, optimizer, scale=lambda images: images):
    for images, labels, _ in shards:
        (F.cross_entropy(net(scale(images)), labels) / step.shards).backward()
    optimizer.step()
    optimizer.zero_grad()


def own_generators():
    """Generators of torch and NumPy that are objects of the run are drawn from in a shard, and outside."""
    generator, of_numpy = torch.Generator().manual_seed(1), np.random.default_rng(2)

    def draw(images):
        noise = torch.randn(images.shape, generator=generator)
        return images + 0.1 * noise + float(of_numpy.random())

    def body(run, step, shards, net, optimizer):
        usual(run, step, shards, net, optimizer, draw)
        with torch.no_grad():
            net[1].weight += 0.01 * torch.rand(1, generator=generator)

    return train(body, generator=generator, of_numpy=of_numpy)


class Shared(nn.Module):
    """One buffer that two modules have: each forward adds to it."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Module(), nn.Module()
        self.linear = nn.Sequential(nn.Flatten(), nn.Linear(108, 4))
        count = torch.zeros(1)
        self.first.register_buffer("count", count)
        self.second.register_buffer("count", count)

    def forward(self, x):
        self.first.count.add_(x.mean())
        return self.linear(x) + self.second.count


def shared_buffer():
    net = Shared()
    found = train(usual, net)
    assert net.first.count is net.second.count and float(net.first.count) != 0
    return found


def validation_after_the_loop():
    """Its draws are those of one process."""

    def after(run, net):
        batches = run.validate(programs.loader())
        return batches.sum([float((images * torch.rand(1)).sum()) for images, _, _ in batches])

    return train(usual, after=after)


def layers_in_turn():
    """A layer is frozen, another one unfrozen, at each step."""

    def body(run, step, shards, net, optimizer):
        net[1].requires_grad_(step.number % 2 == 0)
        net[3].requires_grad_(step.number % 2 == 1)
        usual(run, step, shards, net, optimizer)

    return train(body)


def another_parameter():
    """A layer gets another parameter in the loop, and the optimizer, too."""

    def body(run, step, shards, net, optimizer):
        if step.number == 2:
            net[3].bias = nn.Parameter(torch.ones(4))
            optimizer.param_groups[0]["params"][3] = net[3].bias
        usual(run, step, shards, net, optimizer)

    return train(body)


def gradients_of_another_dtype():
    """bfloat16 weights with gradients in float32, where torch has that."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(108, 4)).bfloat16()
    for parameter in net.parameters():
        parameter.grad_dtype = torch.float32

    def body(run, step, shards, net, optimizer):
        for images, labels, _ in shards:
            (F.cross_entropy(net(images.bfloat16()).float(), labels) / step.shards).backward()
        assert all(one.grad.dtype == torch.float32 for one in net.parameters())
        with torch.no_grad():
            for one in net.parameters():
                one -= (0.1 * one.grad).bfloat16()
        net.zero_grad()

    return train(body, net)


EQUAL = [
    own_generators, shared_buffer, validation_after_the_loop, layers_in_turn, another_parameter,
    gradients_of_another_dtype
]  # fmt: skip


@pytest.mark.parametrize("program", EQUAL)
def test_the_digest_is_that_of_one_process(program, ranks, forked):
    """Three ranks end with the bits of one."""
    if program is gradients_of_another_dtype and not hasattr(torch.Tensor, "grad_dtype"):
        pytest.skip("this torch has no grad_dtype")
    ended = forked(program)
    assert ended.code == 0
    assert ranks(3, program)[0] == [ended.value] * 3


def test_a_finished_run_validates_with_the_draws_that_it_had(tmp_path):
    """Entered again, the code after the loop draws what it drew the first time."""

    def after(run, net):
        batches = run.validate([torch.ones(3)] * 4)
        return batches.sum([float((batch * torch.rand(3)).sum()) for batch in batches])

    assert train(usual, run_dir=tmp_path / "run", after=after) == train(
        usual, run_dir=tmp_path / "run", after=after
    )


class Agent:
    """A user's class around a module and an optimizer."""

    def __init__(self):
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(108, 4))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.1)

    def state_dict(self):
        return {"net": self.net.state_dict()}

    def load_state_dict(self, state):
        self.net.load_state_dict(state["net"])


def hidden_module(run, step, shards, net, optimizer):
    usual(run, step, shards, run.objects["agent"].net, run.objects["agent"].optimizer)


def unfrozen_inside(run, step, shards, net, optimizer):
    for images, labels, _ in shards:
        net[1].requires_grad_(True)
        F.cross_entropy(net(images), labels).backward()


def left_validation(run, step, shards, net, optimizer):
    usual(run, step, shards, net, optimizer)
    batches = run.validate(programs.loader())
    for _ in batches:
        break
    batches.sum([1.0])


def names_that_are_numbers(run, step, shards, net, optimizer):
    shards.sum([{0: 1.0} for _ in shards])


REFUSED = {
    hidden_module: "the run does not know",
    unfrozen_inside: "unfrozen inside",
    left_validation: "Read it to its end",
    names_that_are_numbers: "names in a dict",
}


def refused(body):
    net = nn.Sequential(nn.Flatten(), nn.Linear(108, 9), nn.ReLU(), nn.Linear(9, 4))
    net[1].requires_grad_(False)
    with pytest.raises(InvalidArgumentError, match=REFUSED[body]):
        train(body, net, **({"agent": Agent()} if body is hidden_module else {}))
    return True


@pytest.mark.parametrize("body", REFUSED)
@pytest.mark.parametrize("world_size", [1, 2])
def test_what_would_be_lost_in_silence_is_refused(body, world_size, ranks):
    """One process and several say the same, before the optimizer has made a step of it."""
    assert ranks(world_size, refused, body)[0] == [True] * world_size
