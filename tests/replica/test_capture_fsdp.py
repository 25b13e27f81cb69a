"""FSDP2 in a captured step: each rank makes its own shards; what is gathered is equal, replicas of a shard stay so."""

import logging

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import samebits
from samebits.errors import ConflictError, InvalidArgumentError, UnimplementedError
from samebits.replica import PerRank, analyze, capture
from samebits.replica._capture.capture import _fake_world  # noqa: PLC2701

logging.getLogger("torch.__trace").propagate = False


def make(mesh):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(made, x, mesh):
    model, optimizer = made
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def stray(made, x, mesh):
    step(made, x, mesh)
    with torch.no_grad():
        made[0][0].bias.to_local().add_(x.mean())


def names(report, part):
    return [name for name in report.step.input_names if part in name]


def test_shards_differ_and_what_is_gathered_is_equal():
    """Full sharding over two ranks: shards are as equal as made, stay so, and the gathered weights are equal."""
    report = analyze(capture(step, PerRank(make), torch.randn(3, 4), mesh={"dp": 2}))
    gathered = [node.name for node in report.step.groups if "allgather" in str(node.target)]
    assert gathered and names(report, "0.weight")
    report.expect_varying(*names(report, "0.weight"))
    assert report.drifting == ()


def test_shards_have_the_names_of_their_parameters():
    """Parameters and optimizer state that a rank makes itself are named by their paths, with dots, as those that it is given."""
    report = analyze(capture(step, PerRank(make), torch.randn(3, 4), mesh={"dp": 2}))
    assert {"made.0.0.weight", "made.0.2.bias", "made.1.0.weight.momentum_buffer"} <= set(
        report.step.input_names
    )
    assert report.partition("made.1.2.bias.momentum_buffer") == ((0,), (1,))
    graph = lambda graph, x, mesh: step(graph, x, mesh)  # an argument named as an attribute of a graph module
    assert names(
        analyze(capture(graph, PerRank(make), torch.randn(3, 4), mesh={"dp": 2})), "graph_.0.0.weight"
    )


@pytest.mark.slow
def test_replicas_of_a_shard_stay_equal():
    """Hybrid sharding: a shard is equal over the replicas before and after; a write of the rank's own data is a drift."""
    mesh = {"dp": 2, "tp": 2}
    report = analyze(capture(step, PerRank(make), torch.randn(3, 4), mesh=mesh))
    for name in names(report, "weight"):
        assert report.is_replica_equal(name, over="dp") and not report.is_replica_equal(name)
    assert report.drifting == ()
    broken = analyze(capture(stray, PerRank(make), torch.randn(3, 4), mesh=mesh))
    assert any("0.bias" in name for name in broken.drifting)
    assert all("weight" not in name or "0.bias" in name for name in broken.drifting)


def test_a_sharded_module_itself_is_refused():
    """A module of one rank's shards cannot be another rank's: the error names the way out."""
    with _fake_world(0, 2):
        model, _ = make(init_device_mesh("cpu", (2,)))
    with pytest.raises(UnimplementedError, match="PerRank"):
        capture(lambda model, x: model(x), model, torch.randn(3, 4), world_size=2)


def test_the_function_gets_the_mesh_whether_or_not_the_step_takes_one():
    """A step that needs no mesh has its shards made with one; a function that takes anything else is refused."""

    def plain(made, x):
        step(made, x, None)

    report = analyze(capture(plain, PerRank(make), torch.randn(3, 4), mesh={"dp": 2}))
    assert report.drifting == () and names(report, "0.weight")
    for wrong, where in ((make, {"world_size": 2}), (lambda dp: make(dp), {"mesh": {"dp": 2}})):
        with pytest.raises(InvalidArgumentError, match="PerRank's function takes"):
            capture(plain, PerRank(wrong), torch.randn(3, 4), **where)


def forgetful(made, x):
    made[0](x).square().mean().backward()
    made[1].step()


def clearing(made, x):
    made[1].zero_grad()
    forgetful(made, x)


class Counting(nn.Linear):
    def forward(self, x):
        held = getattr(self, "held", 0)
        self.held = x.mean() + 1
        return super().forward(x) + held


def test_what_a_step_leaves_in_what_a_rank_made_is_not_read_by_the_next():
    """Gradients of shards that are added up over steps, and tensors left in attributes: refused by name; cleared, they are no state."""
    x, mesh = torch.randn(3, 4), {"dp": 2}
    with pytest.raises(UnimplementedError, match=r"left in made\.0\..*weight\.grad .*zero_grad"):
        capture(forgetful, PerRank(make), x, mesh=mesh)
    assert analyze(capture(clearing, PerRank(make), x, mesh=mesh)).drifting == ()
    with pytest.raises(UnimplementedError, match=r"left in made\.held"):
        capture(lambda made, x: made(x), PerRank(lambda: Counting(4, 4)), x, world_size=2)


def test_a_function_that_gives_one_object_to_all_ranks_is_refused():
    """A module, a part of one, or a scheduler that was made before has what the other rank did to it: named; new ones have not."""
    x, shared = torch.randn(3, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(shared.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for wrong, named in (
        (lambda: shared, r"gave made \(Linear\)"),
        (lambda: (nn.Sequential(shared), 3), r"gave made\.0 \(Sequential\)"),
        (lambda: {"scheduler": scheduler}, r"gave made\.scheduler \(StepLR\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=named + ".*inside of the function"):
            capture(lambda made, x: x, PerRank(wrong), x, world_size=2)
    capture(lambda made, x: made(x), PerRank(lambda: nn.Linear(4, 4)), x, world_size=2)


def make_gain(mesh):
    return *make(mesh), nn.Linear(1, 1)


def clipped(made, x, norm):
    """What a loop over shards does in a step; a module that is not sharded is scaled by the norm."""
    model, optimizer, gain = made
    model(x).square().mean().backward()
    total = norm(list(model.parameters()))
    with torch.no_grad():
        gain.weight.mul_(total)
    optimizer.step()
    optimizer.zero_grad()


def by_shards(made, x):
    with samebits.Run(None, model=made[0], optimizer=made[1]):
        pass


def test_a_program_of_shards_is_captured_by_one_of_them():
    """The norm of samebits is equal on all ranks, that of a rank's rows is a drift; a Run inside of the step is refused."""
    x, mesh = torch.randn(3, 4), {"dp": 2}
    whole = lambda made, x: clipped(made, x, lambda own: samebits.nn.utils.clip_grad_norm_(own, 1.0))
    assert analyze(capture(whole, PerRank(make_gain), x, mesh=mesh)).drifting == ()
    rows = lambda made, x: clipped(made, x, lambda own: own[0].grad.to_local().norm())
    assert analyze(capture(rows, PerRank(make_gain), x, mesh=mesh)).drifting == ("made.2.weight",)
    with pytest.raises(ConflictError, match=r"as a Run does \[.*samebits\.Run.*one shard's forward"):
        capture(by_shards, PerRank(make), x, mesh=mesh)
