"""The optimizers of samebits.rounding in captured graphs: the bits of a step, and what the analysis knows of its randomness."""

import logging

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import samebits
from samebits import replica, rounding
from samebits.rounding import optim

logging.getLogger("torch.__trace").propagate = False
BF16 = torch.bfloat16


def one_step(model, optimizer, x):
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("dtype", [BF16, torch.float32])
@pytest.mark.parametrize(
    "make",
    [
        lambda model: optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True, state_dtype=BF16),
        lambda model: optim.AdamW(list(model.named_parameters()), lr=1e-2, maximize=True),
        lambda model: optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True, dampening=0),
        lambda model: optim.SGD(model.parameters(), lr=1e-2, weight_decay=0.1),
    ],
)
def test_a_captured_step_has_the_bits_of_the_optimizer(make, dtype):
    """In a captured graph a parameter's step is one op: run, it rounds by the step and seed of then, as the optimizer does."""
    x, ends = torch.randn(4, 8).to(dtype), []
    for captured in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 4).to(dtype)
        optimizer = make(model)
        samebits.set_random_seed(1)
        one_step(model, optimizer, x)  # makes the state
        step = one_step
        if captured:
            found = replica.capture(one_step, model, optimizer, x, world_size=1)
            assert sum(str(n.target).startswith("samebits.") for n in found.module.graph.nodes) == 2
            step = rounding.lower(found, rounding=False)
        samebits.set_random_seed(2)
        for _ in range(3):
            step(model, optimizer, x)
        ends.append(
            [*model.parameters(), *(one for state in optimizer.state.values() for one in state.values())]
        )
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_the_analysis_knows_the_seed_by_which_weights_are_rounded():
    """The seed is an input that nobody is taken to share: bfloat16 weights drift unless it is declared; float32 ones need none."""

    def report_of(dtype, **inputs):
        model = replica.DataParallel(torch.nn.Linear(8, 4).to(dtype))
        samebits.set_random_seed(1)
        optimizer = optim.AdamW(model.parameters())
        step = replica.capture(one_step, model, optimizer, torch.randn(4, 8).to(dtype), world_size=2)
        return replica.analyze(step, inputs)

    assert "model.module.weight" in report_of(BF16).drifting
    shared = report_of(BF16, **{"generator:samebits": replica.Equal()})
    assert shared.drifting == () and shared.is_replica_equal("generator:samebits")
    exact = report_of(torch.float32)
    assert exact.drifting == () and "generator:samebits" not in exact.step.input_names


def test_the_analysis_knows_the_shards_by_which_weights_are_rounded():
    """FSDP2: with one seed, replicas of a shard stay equal, and shards, though made equal, round by numbers of their own."""

    def make(mesh):
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4, bias=False).to(BF16)
        torch.nn.init.ones_(model.weight)
        fully_shard(model, mesh=mesh)
        return model, optim.AdamW(model.parameters())

    samebits.set_random_seed(1)
    step = replica.capture(
        lambda made, x, mesh: one_step(*made, x),
        replica.PerRank(make),
        torch.randn(3, 4).to(BF16),
        mesh={"dp": 2, "tp": 2},
    )
    report = replica.analyze(step, {"generator:samebits": replica.Equal()})
    assert report.partition("made.0.weight") == ((0, 2), (1, 3)) and report.drifting == ()
