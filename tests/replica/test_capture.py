"""Capture: whole steps of modules and optimizers, compared over ranks."""

import itertools
import logging
import sys

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from samebits.errors import ConflictError, InvalidArgumentError, RankDependentError, UnimplementedError
from samebits.replica import DataParallel, Equal, PerReplica, analyze, capture

logging.getLogger("torch.__trace").propagate = False


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.out = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.out(nn.functional.dropout(self.norm(self.fc(x)), 0.5))


def step(model, optimizer, x, y):
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return {"loss": loss.detach()}


def batch():
    return torch.randn(3, 4), torch.randn(3, 2)


def report_of(model, optimizer, ranks=2):
    return analyze(capture(step, model, optimizer, *batch(), world_size=ranks))


@pytest.mark.first_case_quick
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_data_parallel_weights_and_optimizer_state_are_equal(kind, foreach):
    """DDP keeps weights and optimizer state equal, over any number of steps; without it nothing is."""
    make = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=foreach),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=foreach),
    }[kind]
    model = DataParallel(Net())
    report = report_of(model, make(model.parameters()))
    trained = [f"model.{name}" for name, _ in model.named_parameters()]
    moments = [name for name in report.step.input_names if name.startswith("optimizer.")]
    assert len(moments) == len(trained) * {"sgd": 1, "adamw": 3}[kind]
    report.expect_equal(*trained, *moments)
    bare = Net()
    with pytest.raises(AssertionError, match="DDP does that"):
        report_of(bare, make(bare.parameters())).expect_equal("model.fc.weight")


def test_batch_statistics_vary_though_the_schema_does_not_say_that_they_are_written():
    """BatchNorm buffers take the rank's own batch: they vary at the end of a step, even under DDP."""
    model = DataParallel(Net())
    report = report_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert not report.is_replica_equal("model.module.norm.running_mean")
    assert "native_batch_norm" in report.explain("model.module.norm.running_mean")
    assert report.is_replica_equal("model.module.norm.num_batches_tracked")


def test_a_parameter_outside_of_data_parallel_is_found():
    """One parameter used beside the wrapped module is reduced by nobody."""
    model, extra = DataParallel(nn.Linear(4, 2)), nn.Linear(2, 2)

    def both(model, extra, x):
        extra(model(x)).sum().backward()
        with torch.no_grad():
            for parameter in (*model.parameters(), *extra.parameters()):
                parameter.sub_(parameter.grad)
                parameter.grad = None

    report = analyze(capture(both, model, extra, batch()[0], world_size=2))
    report.expect_equal("model.module.weight", "model.module.bias")
    assert not report.is_replica_equal("extra.weight")


def test_autograd_grad_goes_past_data_parallel():
    """As in DDP: hooks run in backward; gradients of torch.autograd.grad are not reduced."""

    def by_grad(model, x):
        grads = torch.autograd.grad(model(x).sum(), list(model.parameters()))
        with torch.no_grad():
            for parameter, grad in zip(model.parameters(), grads):
                parameter.sub_(grad)

    report = analyze(capture(by_grad, DataParallel(nn.Linear(4, 2)), batch()[0], world_size=2))
    assert not report.is_replica_equal("model.module.weight")


def test_nothing_of_the_caller_is_changed():
    """Weights, gradients, optimizer state, generator and excepthook are as before, and no process group is left."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    before = {name: one.clone() for name, one in model.state_dict().items()}
    x, y = batch()
    drawn, hook = torch.get_rng_state(), sys.excepthook
    capture(step, model, optimizer, x, y, world_size=2)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert not optimizer.state and all(one.grad is None for one in model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn) and sys.excepthook is hook and not dist.is_initialized()


def test_names_and_print():
    """Inputs are named by argument and path, outputs by path; the step prints both and its graph."""
    captured = capture(
        lambda params, x: {"new": params["w"] * x, "two": [x, x + 1]},
        {"w": batch()[0]},
        batch()[0],
        world_size=2,
    )
    assert captured.input_names == ["params.w", "x"]
    assert captured.output_names == ["output.new", "output.two.0", "output.two.1"]
    assert "params.w (batch)" in str(captured) and "aten.mul.Tensor" in str(captured)


def test_python_that_branches_on_the_rank_is_named():
    """A rank-dependent `if` raises with both ops and their lines."""

    def rank_if(p, x):
        return p.add_(x) if dist.get_rank() == 0 else p.mul_(x)

    with pytest.raises(RankDependentError, match=r"add_.*test_capture.py.*mul_"):
        capture(rank_if, *[torch.ones(3)] * 2, world_size=4)


@pytest.mark.parametrize(
    "program",
    [
        lambda p, x: p.add_(x * (dist.get_rank() // 2)),
        lambda p, x: p.add_(torch.full((3,), float(dist.get_rank() // 2))),
        lambda p, x: p.add_(torch.tensor([dist.get_rank() // 2] * 3)),
        lambda p, x: p.add_(x[dist.get_rank() // 2]),
    ],
)
def test_a_constant_made_from_the_rank_varies(program):
    """Arguments, tensors and views made from the rank: equal where the constants are, and the line is named."""
    report = analyze(capture(program, torch.ones(3), torch.arange(3.0), world_size=4), {"*": Equal()})
    assert report.partition("p") == ((0, 1), (2, 3))
    assert "test_capture.py" in report.explain("p")


def test_a_write_at_a_place_made_from_the_rank_varies():
    """Equal bits written to other rows on other ranks: the tensor varies."""

    def place(p, x):
        p[dist.get_rank() :][:1].copy_(x[:1])

    report = analyze(capture(place, torch.ones(3), torch.ones(3), world_size=2), {"*": Equal()})
    assert not report.is_replica_equal("p")


def test_more_ranks_than_are_looked_at():
    """4,096 ranks on a mesh: corners and a sample are captured, groups of the others follow from the mesh; it says so."""

    def reduced(w, x, mesh):
        w.sub_(fc.all_reduce(fc.all_reduce(x @ w, "sum", (mesh, 1)), "avg", (mesh, 0)))
        return fc.all_reduce(x, "sum", (mesh, 1))

    report = analyze(
        capture(reduced, torch.ones(2, 2), torch.ones(2, 2), mesh={"dp": 64, "tp": 64}), {"w": Equal()}
    )
    report.expect_equal("w")
    assert report.is_replica_equal("output", over="tp") and not report.is_replica_equal("output", over="dp")
    assert "of 4096 ranks" in str(report)


def test_wrong_calls():
    """Each wrong call is refused with what to do."""
    with pytest.raises(InvalidArgumentError, match="world_size"):
        capture(lambda x: x, torch.ones(1))
    for step in (torch.mm, 3):  # written in C, and no function
        with pytest.raises(InvalidArgumentError, match="capture a Python function that calls it"):
            capture(step, torch.ones(2, 2), torch.ones(2, 2), world_size=2)
    with pytest.raises(InvalidArgumentError, match="pass the module, too"):
        capture(lambda optimizer: None, torch.optim.SGD(Net().parameters(), lr=1), world_size=2)
    report = analyze(capture(lambda x: x + 1, torch.ones(1), world_size=2))
    with pytest.raises(InvalidArgumentError, match="no input has this name"):
        analyze(report.step, {"z": Equal()})
    with pytest.raises(InvalidArgumentError, match="axes"):
        report.is_replica_equal("output", over="dp")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        with pytest.raises(ConflictError, match="process group"):
            capture(lambda x: x, torch.ones(1), world_size=2)
    finally:
        dist.destroy_process_group()


def test_what_one_rank_counts_in_python_no_other_rank_sees():
    """A scheduler among the arguments steps once on each rank, from where the caller has it, and changes no caller's."""
    model = DataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)

    def step(model, optimizer, scheduler, x):
        model(x).sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    report = analyze(capture(step, model, optimizer, scheduler, torch.ones(4, 3), world_size=3))
    assert report.drifting == () and scheduler.last_epoch == 0 and optimizer.param_groups[0]["lr"] == 1.0

    # the negative control: the place of an iterator is shared, and makes other steps
    counted = itertools.count(1)

    def wrong(model, x):
        model.module.weight.data.add_(0.1 * next(counted))

    assert analyze(capture(wrong, model, torch.ones(4, 3), world_size=3)).drifting == ("model.module.weight",)


@pytest.mark.parametrize(
    "reads", [float, lambda loss: loss if loss > 3 else None, lambda loss: f"{loss.item():.3f}"]
)
def test_a_step_that_reads_a_value_is_refused_with_its_line(reads):
    """Nothing is computed in a capture: what reads a value is named, and not torch's symbols; printing reads none."""

    def step(model, x):
        loss = model(x).mean().detach()
        print(loss)
        return loss if reads is None else reads(loss)

    with pytest.raises(
        UnimplementedError, match=r"reads the value of a tensor.*test_capture.py:\d+: "
    ) as caught:
        capture(step, nn.Linear(3, 2), torch.ones(4, 3), world_size=2)
    assert "zuf" not in str(caught.value)
    reads = None  # the negative control: the same step without the read is captured
    capture(step, nn.Linear(3, 2), torch.ones(4, 3), world_size=2)


def test_a_compiled_module_is_refused():
    """Its graph is made already; what to pass is said."""
    with pytest.raises(UnimplementedError, match="_orig_mod"):
        capture(lambda model, x: model(x), torch.compile(nn.Linear(3, 2)), torch.ones(4, 3), world_size=2)


@pytest.mark.parametrize("wrong", [Equal, "equal", 3, None])
def test_what_is_no_declaration_is_refused(wrong):
    """`Equal` without its brackets is the likely one."""
    step = capture(lambda x: x + 1, torch.ones(3), world_size=2)
    with pytest.raises(InvalidArgumentError, match="Equal\\(\\), PerReplica\\(\\) or Partition"):
        analyze(step, {"x": wrong})
    with pytest.raises(InvalidArgumentError, match="by name"):
        analyze(step, ["x"])


@pytest.mark.parametrize(
    "size", [{"world_size": "2"}, {"world_size": 2.5}, {"mesh": {"dp": 2.0}}, {"mesh": {}}]
)
def test_sizes_are_integers(size):
    """Half of a rank is no rank."""
    with pytest.raises(InvalidArgumentError, match="integers"):
        capture(lambda x: x + 1, torch.ones(3), **size)


def test_arguments_that_are_missing_are_named():
    """Those with a default, and a mesh, may be left out."""
    capture(lambda x, y=2, *rest, **more: x + y, torch.ones(3), world_size=2)
    with pytest.raises(InvalidArgumentError, match=r"\(\) also takes y, z; give"):
        capture(lambda x, y, *, z: x + y, torch.ones(3), world_size=2)


def test_a_batch_that_is_written_is_told():
    """A plain argument that the step writes counts as state, which the report says; declared per replica, it does not."""

    def step(w, x):
        x.div_(255)
        w.sub_(x.sum(0))

    w = torch.nn.Parameter(torch.zeros(4), requires_grad=False)
    captured = capture(step, w, torch.ones(2, 4), world_size=2)
    told = "x is written by the step, so it counts as state, equal at the start; a batch is PerReplica()"
    assert told in str(analyze(captured)).splitlines()
    report = analyze(captured, {"x": PerReplica()})
    assert told not in str(report) and report.drifting == ("w",)
