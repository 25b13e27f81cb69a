"""Records of several ranks: what may differ between them is in the record, and a rank that differs is found."""

import os
from dataclasses import replace

import pytest
import torch
from torch import nn

from samebits.audit._comparison import earliest
from samebits.audit._first_difference import Difference
from samebits.audit._record.record_file import RecordFile, folder_of_process, read_ranks
from samebits.audit._record.recorder import Recorder, recording
from samebits.audit._verify.baseline import BaselineComparison, facts_of
from samebits.audit._verify.check_plan import checks_after


def train(kind):
    """Four steps of a small program; `kind` says what it does on each rank alone."""
    import torch.distributed as dist
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    from samebits.train import Run

    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    net.register_buffer("scale", torch.ones(()))
    model = net if kind == "bare" else DistributedDataParallel(net, broadcast_buffers=kind != "own buffers")
    if kind == "keyed":
        model.broadcast_buffers = False
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    if kind == "sharded":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    given = {"model": model, "optimizer": optimizer}
    if kind == "average":
        given["average"] = torch.optim.swa_utils.AveragedModel(net)
    generator = torch.Generator().manual_seed(rank)
    with Run(None, **given) as run:
        for step, x in run.steps([torch.randn(8, 4, generator=generator) for _ in range(4)], epochs=1):
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if kind == "average" and rank == 0:
                given["average"].update_parameters(net)
            if kind == "keyed":
                net.scale += rank
            if kind == "draw" and step.number == 2:
                net[0].weight.data += 1e-3 * torch.rand(6, 4, generator=generator)


def record(folder, kind):
    import torch.distributed as dist

    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(dist.get_rank()), str(dist.get_world_size())
    recorder = Recorder(RecordFile(folder_of_process(folder)))
    with recording(recorder, "", level="state", every=1, allowed=()):
        train(kind)
    recorder.finish()


@pytest.fixture
def replicas(ranks, tmp_path):
    """(row, facts) of "replicas equal" for a program on two ranks."""

    def of(kind):
        ranks(2, record, tmp_path, kind)
        records = read_ranks(tmp_path)
        facts = facts_of(*records)
        (check,) = checks_after(facts, ("replicas",), 0)
        judge = BaselineComparison(records, (frozenset(),) * 2)
        return judge.row(check, ()), facts

    return of


@pytest.mark.parametrize(
    "kind, noted",
    [
        (
            "sound",
            "1.running_mean, module.1.running_var may differ between two steps: DistributedDataParallel",
        ),
        ("own buffers", "1.running_mean, module.1.running_var may differ between two steps: each rank"),
        ("average", "no parameter that trains"),
        ("sharded", ""),
    ],
)
def test_what_ddp_programs_may_do_is_no_difference(replicas, kind, noted):
    """Statistics of BatchNorm, overwritten or not, an average of rank 0 alone, a sharded optimizer: equal, and a note."""
    row, facts = replicas(kind)
    assert row.equal is True and row.decides and row.steps_compared == 4
    assert noted in row.remark
    assert facts.ranks == 2


@pytest.mark.parametrize(
    "kind, step, component, path",
    [("keyed", 0, "buffers", "module.scale"), ("draw", 2, "model", "module.0.weight")],
)
def test_a_rank_that_differs_is_found_at_its_step(replicas, kind, step, component, path):
    """A buffer keyed by the rank and a draw of a rank's own: rank 1, the step, the component and the leaf."""
    row, _ = replicas(kind)
    found = row.difference
    assert (found.rank, found.step, found.component) == (1, step, component) and found.paths == (path,)
    assert found.sentence().startswith(f"rank 1: step {step} (epoch 0, batch {step}): {component} ({path})")


def test_without_ddp_nothing_is_promised(replicas):
    """Two ranks without DistributedDataParallel differ, and the row does not count."""
    row, _ = replicas("bare")
    assert row.equal is False and not row.decides


def test_each_rank_has_a_folder_and_one_process_has_none(tmp_path, monkeypatch):
    """Ranks 0 and 1 do not share a file; one process, or a number without a rank, records in the folder itself."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert folder_of_process(tmp_path) == tmp_path / f"rank{rank}"
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert folder_of_process(tmp_path) == tmp_path
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK")
    assert folder_of_process(tmp_path) == tmp_path


def test_the_cause_comes_before_what_follows_from_it_on_another_rank():
    """In one step rank 1's batch is the cause of rank 0's other parameters; an earlier step comes first all the same."""
    follows, cause = Difference(3, "model", (), rank=0), Difference(3, "batch", (), rank=1)
    assert earliest([follows, cause]) is cause
    assert earliest([replace(follows, step=2), cause]).rank == 0
    assert earliest([None, None]) is None
