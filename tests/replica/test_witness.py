"""The witness on gloo: it names the value, the ranks and the step where replicas part, and is silent where they do not."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP

import samebits
from samebits.errors import InvalidArgumentError, ReplicaDriftError
from samebits.replica import DataParallel, Equal, PerReplica, Witness, analyze, capture
from samebits.rounding import optim


def small_net(norm=False):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8) if norm else nn.Tanh(), nn.Linear(8, 2))


SEED = "generator:samebits"


def bfloat16_step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).float().square().mean().backward()
    optimizer.step()


def bfloat16_parts(wrap):
    net = wrap(small_net().to(torch.bfloat16))
    return net, optim.AdamW(net.parameters(), lr=1e-3)


def train_bfloat16(own_seeds, steps=200, every=20):
    """DDP with stochastic AdamW; what the witness says of each rank, if anything, and the weights' bits at the end."""
    net, optimizer = bfloat16_parts(DDP)
    samebits.set_random_seed(7 + own_seeds * dist.get_rank())
    data = torch.Generator().manual_seed(100 + dist.get_rank())
    witness, said = Witness({"model": net, "optimizer": optimizer}), ""
    for step in range(steps + 1):
        try:
            if not said and step % every == 0:
                witness.check(step)
        except ReplicaDriftError as error:
            said = str(error)
        if step < steps:
            bfloat16_step(net, optimizer, torch.randn(4, 8, generator=data).to(torch.bfloat16))
    return said, [one.view(torch.int16).tolist() for one in net.parameters()]


@pytest.fixture(scope="module")
def bfloat16_reports():
    """The analysis of that step, with a seed that all ranks share, and with one for each, by number of ranks."""
    samebits.set_random_seed(7)
    reports = {}
    for world_size in (2, 4):
        model, optimizer = bfloat16_parts(DataParallel)
        x = torch.randn(4, 8).to(torch.bfloat16)
        step = capture(bfloat16_step, model, optimizer, x, world_size=world_size)
        reports[world_size] = [analyze(step, {SEED: one}) for one in (Equal(), PerReplica())]
    return reports


@pytest.mark.first_case_quick
@pytest.mark.parametrize("world_size", [2, 4])
def test_replicas_in_bfloat16_are_bitwise_equal_after_200_steps(ranks, bfloat16_reports, world_size):
    """DDP, AdamW with stochastic rounding, a batch for each rank: proven equal, witnessed every 20 steps, equal at the end."""
    shared, _ = bfloat16_reports[world_size]
    assert shared.drifting == ()
    ends = ranks(world_size, train_bfloat16, False)[0]
    assert [said for said, _ in ends] == [""] * world_size
    assert all(weights == ends[0][1] for _, weights in ends)


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_seed_for_each_rank_is_named_by_the_analysis_and_by_the_witness(
    ranks, bfloat16_reports, world_size
):
    """Negative control: the ranks end apart, and what both name first is the same weight; the analysis says why, with the line."""
    _, own = bfloat16_reports[world_size]
    ends = ranks(world_size, train_bfloat16, True)[0]
    assert all(weights != ends[0][1] for _, weights in ends[1:])
    assert len({said for said, _ in ends}) == 1
    first = re.match(r"step 20: (\S+) is not the same on all replicas: rank ", ends[0][0])
    assert first and "it was equal at step 0" in ends[0][0]
    assert own.drifting[0] == first[1] == "model.module.0.weight"
    text = own.explain_drift(own.drifting[0])
    assert (
        f"{SEED} (generator) at the start" in text
        and "optimizer.step()" in text
        and "set_random_seed" in text
    )


def train_run(folder, stray=None, norm=False, every=2, last=None, fails=None, **options):
    """A `Run` of DDP in which one rank writes to a weight of its own accord; what its witness says."""
    samebits.set_random_seed(5)
    net = DDP(small_net(norm))
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    source = torch.arange(72.0).reshape(72, 1).expand(72, 8) / 72
    loader = samebits.data.Pipeline.from_source(list(source)).shuffle().batch(12)
    try:
        with samebits.Run(folder, model=net, optimizer=optimizer) as run, Witness(run, every, **options):
            for step, x in run.steps(loader, epochs=1):
                optimizer.zero_grad()
                net(x + dist.get_rank()).square().mean().backward()
                optimizer.step()
                if stray == (step.number, dist.get_rank()):
                    with torch.no_grad():
                        net.module[2].weight[1, 1] += 1e-6
                if step.number == last:
                    break
                if step.number == fails:
                    raise KeyError("mine")
        return "equal"
    except ReplicaDriftError as error:
        return str(error)


def test_a_stray_write_on_one_rank_of_a_run_is_named(ranks, tmp_path):
    """Rank 2 changes one weight in step 2: the check before step 4 names the weight and the rank; without it, silence."""
    assert ranks(4, train_run, tmp_path / "a")[0] == ["equal"] * 4
    for said in ranks(4, train_run, tmp_path / "b", (2, 2))[0]:
        assert said.startswith("step 4: model.module.2.weight is not the same on all replicas: rank 2 holds ")
        assert "rank 0, 1, 3 holds" in said and "it was equal at step 2" in said


def test_the_end_of_a_run_is_checked_whatever_the_cadence(ranks, tmp_path):
    """Six steps, a check before every fourth: a stray write in step 5 is named at the end of the run; so is it after a break."""
    for folder, last in (("a", None), ("b", 5)):
        for said in ranks(3, train_run, tmp_path / folder, (5, 1), False, 4, last)[0]:
            assert said.startswith(
                f"step {last or 6}: model.module.2.weight is not the same on all replicas: rank 1 holds "
            )
            assert "it was equal at step 4" in said
    assert ranks(3, train_run, tmp_path / "c", None, False, 4)[0] == ["equal"] * 3


def run_failing(folder):
    try:
        return train_run(folder, (4, 1), every=4, fails=5)
    except KeyError as error:
        return error.args[0]


def test_after_an_error_nothing_is_compared(ranks, tmp_path):
    """An error of the user's own comes out as it is, though the ranks have parted: who waits for the others would hide it."""
    assert ranks(3, run_failing, tmp_path / "a")[0] == ["mine"] * 3


def test_batch_statistics_are_named_or_ignored(ranks, tmp_path):
    """Under DDP the BatchNorm buffers of the ranks differ between two steps; ignored by a pattern, the rest is equal."""
    said = ranks(3, train_run, tmp_path / "a", None, True)[0]
    assert said[0].startswith("step 2: model.module.1.running_mean is not the same")
    ignoring = ranks(3, run_ignoring, tmp_path / "b")[0]
    assert ignoring == ["equal"] * 3


def run_ignoring(folder):
    return train_run(folder, None, True, ignore=["*.running_*"])


def sgd_step(model, optimizer, x):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def report_of(world_size):
    model = DataParallel(small_net(norm=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    return analyze(capture(sgd_step, model, optimizer, torch.randn(8, 8), world_size=world_size))


def test_a_report_says_what_is_compared(ranks, tmp_path):
    """The analysis does not claim the batch statistics, so the witness does not ask for them; a stray write is still named."""
    report = report_of(3)
    assert ranks(3, run_claims, tmp_path / "a", report, None)[0] == ["equal"] * 3
    said = ranks(3, run_claims, tmp_path / "b", report, (2, 1))[0]
    assert said[0].startswith("step 4: model.module.2.weight is not the same on all replicas: rank 1 holds")


def run_claims(folder, report, stray):
    return train_run(folder, stray, True, report=report)


def hybrid(broken):
    """A weight sharded over `tp` and replicated over `dp`: shard i is compared with shard i only."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Linear(4, 4, bias=False)
    whole = torch.arange(16.0).reshape(4, 4)
    model.weight = nn.Parameter(distribute_tensor(whole, mesh, [Replicate(), Shard(0)]))
    witness = Witness({"model": model})
    witness.check(0)
    if broken and dist.get_rank() == 3:
        model.weight.to_local().data[0, 0] += 1
    try:
        witness.check(1)
        return "equal"
    except ReplicaDriftError as error:
        return str(error)


def test_shards_are_compared_with_their_replicas_only(ranks):
    """Shards of a DTensor differ from each other, which is no drift; a shard that differs from its replica is."""
    assert ranks(4, hybrid, False)[0] == ["equal"] * 4
    said = ranks(4, hybrid, True)[0]
    assert said[0].startswith("step 1: model.weight is not the same") and "rank 3 holds" in said[0]
    assert "rank 0" not in said[0] and len(set(said)) == 1


def at_other_steps():
    with pytest.raises(ReplicaDriftError, match="the ranks are at other steps"):
        Witness({"model": small_net()}).check(dist.get_rank())
    model = nn.Linear(2, 2, bias=dist.get_rank() == 0)
    with pytest.raises(ReplicaDriftError, match="values of other names"):
        Witness({"model": model}).check(0)
    return True


def test_ranks_that_came_apart_are_told(ranks):
    """Other steps, or other objects, are errors on all ranks, and nobody waits for ever."""
    assert ranks(3, at_other_steps)[0] == [True] * 3


def test_wrong_calls_of_a_witness():
    """Each wrong call is refused with what to do; a single process has nothing to compare."""
    model = small_net()
    Witness({"model": model}).check(3)
    with pytest.raises(InvalidArgumentError, match="at least 1"):
        Witness({"model": model}, every=0)
    with pytest.raises(InvalidArgumentError, match="of 3 ranks, there are 1"):
        Witness({"model": model}, report=report_of(3))
    with pytest.raises(InvalidArgumentError, match="names none of the values"):
        Witness({"net": model}, report=report_of(1))
    with pytest.raises(InvalidArgumentError, match="pass the module, too"):
        Witness({"optimizer": torch.optim.SGD(model.parameters(), 0.1)})
