"""Calls of `nested_compile_region` stay calls in a captured step, with the bits of eager code."""

import copy
import logging

import pytest
import torch
from torch import nn
from torch.compiler import nested_compile_region

from samebits.replica import DataParallel, Equal, analyze, capture

logging.getLogger("torch.__trace").propagate = False


class Block(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.norm, self.fc, self.dropout = nn.LayerNorm(8), nn.Linear(8, 8), dropout

    @nested_compile_region
    def forward(self, x):
        return x + nn.functional.dropout(torch.tanh(self.fc(self.norm(x))), self.dropout)


class Net(nn.Module):
    def __init__(self, make=Block):
        super().__init__()
        self.blocks, self.out = nn.ModuleList(make() for _ in range(3)), nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.out(x)


def step(model, optimizer, x):
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def calls(captured):
    return [n for n in captured.module.graph.nodes if str(n.target) == "invoke_subgraph"]


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def test_regions_are_calls_and_have_the_bits_of_eager_code():
    """Three blocks are three calls forward and three backward; the captured step gives the weights of an eager one."""
    torch.manual_seed(0)
    model, x = Net(), torch.randn(4, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    captured = capture(step, model, optimizer, x, world_size=1)
    assert len(calls(captured)) == 6
    own = copy.deepcopy(model)
    inputs = [*dict(own.named_parameters()).values(), x]
    with torch.no_grad():
        (loss,) = captured.module(*inputs)
    expected = step(model, optimizer, x)
    assert torch.equal(loss, expected)
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), model.parameters()))


@pytest.mark.slow
def test_regions_are_followed():
    """Under DDP weights that are used in calls stay equal; without it they vary, with the line of the backward."""
    model = DataParallel(Net())
    report = analyze(capture(step, model, adamw(model), torch.randn(4, 8), world_size=4))
    assert calls(report.step) and report.drifting == ()
    bare = Net()
    report = analyze(capture(step, bare, adamw(bare), torch.randn(4, 8), world_size=4))
    assert "model.blocks.0.fc.weight" in report.drifting
    assert "loss.backward()" in report.explain("model.blocks.0.fc.weight")


@nested_compile_region
def region(x):
    return torch.sin(x) * 2.0


def test_calls_of_a_region_that_disagree_are_reported():
    """One region on an equal and a varying value: each has its own result, and the report names both lines."""

    def both(w, x):
        return region(w), region(x)

    report = analyze(capture(both, torch.ones(3), torch.ones(3), world_size=2), {"w": Equal()})
    assert report.is_replica_equal("output.0") and not report.is_replica_equal("output.1")
    (found,) = report.findings
    assert found.kind == "call sites" and "region_0" in found.text and "test_compile_regions.py" in found.text


def test_a_region_that_closes_over_a_tensor_is_run_as_eager_code_runs_it():
    """What is no operand of a call gets no gradient from it: the weight is followed all the same."""

    def closing(w, x):
        loss = nested_compile_region(lambda x: (x @ w).sin())(x).sum()
        return torch.autograd.grad(loss, w)[0]

    report = analyze(
        capture(closing, torch.ones(3, 3, requires_grad=True), torch.ones(3, 3), world_size=2), {"w": Equal()}
    )
    assert calls(report.step) == [] and not report.is_replica_equal("output")


class Normed(Block):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)


@pytest.mark.slow
@pytest.mark.first_case_quick
@pytest.mark.parametrize("make", [Normed, lambda: Block(0.5)])
def test_a_region_with_effects_is_run_as_eager_code_runs_it(make):
    """A backward that computes a region again would draw other masks and count a batch twice: such regions are no calls."""
    model = Net(make)
    captured = capture(step, model, adamw(model), torch.randn(4, 8), world_size=2)
    assert calls(captured) == []
    targets = [str(node.target) for node in captured.module.graph.nodes]
    drawn = sum("bernoulli" in one for one in targets)
    assert drawn == (0 if make is Normed else 3)
