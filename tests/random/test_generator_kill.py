"""A Run whose model holds a `samebits.random.Generator` is really killed, resumed, and goes on with the same draws."""

import signal

import pytest
import torch
from torch import nn

import samebits
from at_step import AtStep
from samebits import _digest as digest
from samebits._context import CheckOverrides, process
from samebits.random import Generator, get_global_generator


class Noisy(nn.Module):
    """Noise of its own generator, a number of times that differs from step to step."""

    def __init__(self, saved):
        super().__init__()
        self.linear = nn.Linear(4, 2)
        noise = Generator.from_seed(1)
        self.noise = noise if saved else [noise]  # a list hides it from state_dict

    def forward(self, x):
        noise = self.noise if isinstance(self.noise, Generator) else self.noise[0]
        for _ in range(1 + int(40 * x[0, 0]) % 3):
            x = x + 0.1 * noise.normal(4)
        return self.linear(x + 0.1 * get_global_generator().normal(4))


def train(run_dir, *, kill_at=None, saved=True):
    samebits.set_random_seed(5)
    process.overrides = CheckOverrides(commit_steps=(3, 6))
    if kill_at is not None:
        process.observers.append(AtStep("step_begins", kill_at))
    model = Noisy(saved)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    loader = samebits.data.DataLoader(torch.arange(40.0).view(10, 4), batch_size=2, shuffle=True)
    with samebits.Run(run_dir, model=model, opt=opt, check_complete=saved) as run:
        for _, x in run.steps(loader, epochs=2):
            opt.zero_grad()
            model(x / 40 + 1).square().sum().backward()
            opt.step()
    return digest.of_value([model.state_dict(), get_global_generator().uniform(2)]), run.resumed


@pytest.mark.slow
@pytest.mark.parametrize("kill_at", [4, 8])
def test_killed_and_resumed_with_equal_draws(forked, tmp_path, kill_at):
    """The model's generator comes back from the commit, the global one from the step: the end has the same bits."""
    expected, _ = forked(train, None).value
    assert forked(lambda: train(tmp_path / "r", kill_at=kill_at)).code == -signal.SIGKILL
    assert forked(train, tmp_path / "r").value == (expected, True)


def test_a_generator_that_is_not_saved_is_lost(forked, tmp_path):
    """Negative control: hidden from the state_dict, it starts again after the resume, and the bits differ."""
    expected, _ = forked(lambda: train(None, saved=False)).value
    assert forked(lambda: train(tmp_path / "r", kill_at=4, saved=False)).code == -signal.SIGKILL
    got, resumed = forked(lambda: train(tmp_path / "r", saved=False)).value
    assert resumed and got != expected
