"""State in hooks, in attributes of functions and of parameters: what a resume would lose is named, what it would not is let be."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import samebits
from samebits.errors import IncompleteStateError


class Growing:
    """A hook that counts its calls, or (`quiet`) only keeps what it saw last."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet, self.calls, self.seen = quiet, 0, torch.zeros(())

    def __call__(self, module: torch.nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        self.seen = output.detach()
        self.calls += not self.quiet
        return output * (1 + self.calls)


def train(
    run_dir: Path, prepare: Callable[[torch.nn.Module], Callable[[torch.Tensor], torch.Tensor] | None]
) -> None:
    samebits.set_random_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    change = prepare(model) or torch.square
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = samebits.data.DataLoader(torch.randn(12, 3), batch_size=2)
    with samebits.Run(run_dir, model=model, optimizer=optimizer) as run:
        for _, x in run.steps(loader, epochs=2):
            optimizer.zero_grad()
            change(model(x)).mean().backward()
            optimizer.step()


def counted_in_a_closure(model):
    calls = {"n": 0}

    def scale(module, inputs, output):
        calls["n"] += 1
        return output * calls["n"]

    model[0].register_forward_hook(scale)


def counted_in_an_object(model):
    model[1].register_forward_hook(Growing(quiet=False))


def counted_for_a_gradient(model):
    calls = [0]

    def scale(gradient):
        calls[0] += 1
        return gradient * calls[0]

    model[0].weight.register_hook(scale)


def summed_in_a_parameter(model):
    weight = model[0].weight
    weight.total = torch.zeros_like(weight)
    weight.register_hook(lambda gradient: weight.total.add_(gradient))


def counted_in_a_function(model):
    def change(output):
        change.calls += 1
        return output.square() * change.calls

    change.calls = 0
    return change


@pytest.mark.parametrize(
    ("prepare", "path"),
    [
        (counted_in_a_closure, "model.0.scale.calls: a hook holds it"),
        (counted_in_an_object, "model.1.Growing.calls: a hook holds it"),
        (counted_for_a_gradient, "model.0.scale.calls: a hook holds it"),
        (summed_in_a_parameter, "model.0.weight.total"),
        (counted_in_a_function, "change.calls"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_count_in_a_hook_is_told(tmp_path, prepare, path):
    """What a hook, a parameter's attribute or a function's attribute carries from step to step is an error with its path."""
    with pytest.raises(IncompleteStateError) as raised:
        train(tmp_path, prepare)
    assert path in str(raised.value)


def features_by_name(model):
    features = {}

    def keep(module, inputs, output):
        features["first"] = output

    model[0].register_forward_hook(keep)
    model[1].register_forward_hook(lambda module, inputs, output: output + features["first"].square().mean())


def the_last_output(model):
    model[0].register_forward_hook(Growing(quiet=True))


def a_list_that_is_cleared(model):
    kept = []
    model.register_forward_pre_hook(lambda module, inputs: kept.clear())
    model[0].register_forward_hook(lambda module, inputs, output: kept.append(output.mean()))
    model[1].register_forward_hook(lambda module, inputs, output: output + sum(kept))


def a_clock(model):
    begun = 0.0

    def start(module, inputs):
        nonlocal begun
        begun = time.perf_counter()

    model.register_forward_pre_hook(start)


def torchs_own(model):
    torch.nn.utils.spectral_norm(model[0])
    torch.nn.utils.parametrizations.weight_norm(model[1])


@pytest.mark.parametrize(
    "prepare", [features_by_name, the_last_output, a_list_that_is_cleared, a_clock, torchs_own]
)
def test_a_hook_that_carries_nothing_is_let_be(tmp_path, prepare):
    """Hooks that keep what the same step reads, clocks, and torch's own hooks raise no alarm."""
    train(tmp_path, prepare)
