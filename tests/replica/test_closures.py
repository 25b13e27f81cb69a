"""Names of what a step closes over: those of the code, in the report, in explain, in the listing and on the command line."""

import functools
import logging
import sys

import pytest
import torch
from torch import nn

from samebits.cli._app import main
from samebits.replica import Equal, analyze, capture, listing

logging.getLogger("torch.__trace").propagate = False
X = torch.ones(3, 4)
NET = nn.Linear(4, 4)
SHARED = torch.Generator()


class Settings:
    def __init__(self):
        self.scale, self.layers = torch.ones(4), {"a-b": [torch.ones(4)], "graph": torch.ones(4)}


class Trainer:
    def __init__(self):
        self.model = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def step(self, x):
        self.model(x).square().sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def constants(step, *args):
    captured = capture(step, *args, world_size=2)
    return {name for name, kind in captured.kinds.items() if kind == "constant"}


def test_what_a_step_closes_over_has_the_name_of_its_variable():
    """Free variables, globals and defaults, through attributes, dicts, lists, helpers and decorators; made inside, it has none."""
    settings, shift, model = Settings(), torch.ones(4), nn.Sequential(nn.Linear(4, 4))

    def helper(x):
        return x * settings.layers["a-b"][0] + settings.layers["graph"] + shift

    @torch.no_grad()
    def step(x, bias=torch.zeros(4)):  # noqa: B008
        return NET(model(helper(x))) * settings.scale + bias + torch.tensor(3.0)

    assert constants(step, X) == {
        "NET.weight",
        "NET.bias",
        "model.0.weight",
        "model.0.bias",
        "settings.scale",
        "settings.layers.a-b.0",
        "settings.layers.graph",
        "helper.shift",
        "bias",
        "_tensor_constant5",
    }


def test_a_method_and_a_partial_name_what_they_hold():
    """State of `self`, momenta by their parameters, what a partial has bound, a module as the step, hidden tensors of a batch."""
    trainer = Trainer()
    trainer.step(X)
    trained = {"self.model.weight", "self.model.bias"}
    momenta = {f"self.optimizer.{name}.momentum_buffer" for name in trained}
    assert constants(trainer.step, X) == trained | momenta
    partial = functools.partial(lambda net, x: net(x), nn.Linear(4, 4))
    assert constants(partial, X) == {"net.weight", "net.bias"}
    assert constants(nn.Linear(4, 4), X) == {"self.weight", "self.bias"}
    assert constants(lambda batch: batch.scale * 2, Settings()) == {"batch.scale"}


def test_reports_say_these_names():
    """explain and the listing print the variable; a weight that drifts has the cure of one that is an argument."""
    trainer = Trainer()
    trainer.step(X)
    report = analyze(capture(trainer.step, X, world_size=2))
    assert "self.model.weight" in report.drifting
    told = report.explain("self.model.weight")
    assert told.startswith("self.model.weight varies") and "average its gradient" in told
    assert "addmm.default(self.model.bias: " in listing(report)


def test_generators_have_the_names_of_their_variables():
    """A global one and one of `self`: what is drawn from the one that is declared equal is equal, from the other (control) not."""

    class Noise:
        def __init__(self):
            self.own = torch.Generator()

        def __call__(self, x):
            return torch.rand(x.shape, generator=self.own), torch.rand(2, generator=SHARED) + torch.rand(
                2, generator=SHARED
            )

    captured = capture(Noise(), X, world_size=2)
    assert captured.input_names == ["x", "generator:self.own", "generator:SHARED"]
    report = analyze(captured, {"generator:SHARED": Equal()})
    assert report.is_replica_equal("output.1") and not report.is_replica_equal("output.0")
    assert "generator:self.own" in str(report.explain("output.0"))


def test_two_variables_of_one_tensor_are_one_value():
    """The same bytes under two names, or in two shapes, are counted once; two halves of a buffer are two values."""
    weight = torch.ones(4)
    again, shaped = weight, weight.view(2, 2)
    assert len(constants(lambda x: x * weight + again + shaped.view(4), X)) == 1
    low, high = weight[:2], weight[2:]
    assert constants(lambda x: x[:, :2] * low + high, X) == {"low", "high"}


def test_each_value_of_a_sharded_model_is_counted_once(monkeypatch, capsys, tmp_path):
    """FSDP2 reads a shard flat and in its shape: the command's total is that of parameters and optimizer states."""
    (tmp_path / "sharded_steps.py").write_text(SHARDED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["samebits", "replica", "sharded_steps.py:sharded", "--mesh", "dp=2"])
    with pytest.raises(SystemExit) as ended:
        main()
    out = capsys.readouterr().out
    assert ended.value.code == 0 and "_1 " not in out
    # 2, and 3 of AdamW each
    assert out.splitlines()[-1].startswith("all 8 parameters, buffers and optimizer states")
    monkeypatch.setattr(sys, "argv", ["samebits", "replica", "sharded_steps.py:closed", "--world-size", "2"])
    with pytest.raises(SystemExit):
        main()
    out = capsys.readouterr().out
    assert "MODEL.weight varies" in out and "_constant" not in out


SHARDED = """
import torch
from torch.distributed.fsdp import fully_shard
from samebits import replica

MODEL = torch.nn.Linear(4, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)

def make(mesh):
    model = fully_shard(torch.nn.Linear(4, 2), mesh=mesh)
    return model, torch.optim.AdamW(model.parameters())

def sharded():
    def step(made, x):
        made[0](x).square().sum().backward()
        made[1].step()
        made[1].zero_grad()
    return step, (replica.PerRank(make), torch.ones(3, 4))

def closed():
    def step(x):
        MODEL(x).square().sum().backward()
        OPTIMIZER.step()
        OPTIMIZER.zero_grad()
    return step, (torch.ones(3, 4),)
"""
