"""Real ranks on gloo: a lowered training step in bfloat16 keeps replicas bitwise equal, over 2 and 4 processes."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from gloo_ranks import run_ranks
from samebits import _digest as digest
from samebits import replica, rounding

BF16, STEPS = torch.bfloat16, 20


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4)).to(BF16)


def optimizer_of(model):
    """AdamW with its state: as after a first step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def train(model, optimizer, x, y):
    loss = nn.functional.cross_entropy(model(x).float(), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def in_place(w, g):
    dist.all_reduce(g)
    w.view(-1)[:32].add_(g.view(-1)[:32], alpha=-0.003)
    part = fc.reduce_scatter_tensor(w * 1.7, "sum", 0, dist.group.WORLD)
    return part, fc.all_gather_tensor(part, 0, dist.group.WORLD)


def hybrid(w, g, mesh):
    """A shard of each weight in tp, replicated over dp: the gradient is summed over dp."""
    w.sub_(fc.all_reduce(g, "sum", (mesh, 0)), alpha=0.003)
    return w * 1.7


def assigned(step, *args, inputs=None, **world):
    captured = replica.capture(step, *args, **world)
    report = replica.analyze(captured, inputs)
    rounding.assign_methods(captured, report)
    return captured, report


def lowered_on_a_rank(ranks, program, step, sharded):
    rank, out = dist.get_rank(), {}
    seeds = {"ddp": 7, "another seed": 8, "a seed for each rank": 7 + rank}
    for name, seed in seeds.items():
        model = replica.DataParallel(network())
        optimizer = optimizer_of(model)
        lowered = rounding.lower(program, seed=seed)
        data = torch.Generator().manual_seed(100 + rank)  # every rank has data of its own
        for _ in range(STEPS):
            x = torch.randn(8, 16, generator=data).to(BF16)
            loss = lowered(model, optimizer, x, x[:, :4].float().argmax(1))
        state = [v for entries in optimizer.state.values() for v in entries.values()]
        ended = [*(p.detach() for p in model.parameters()), *state]
        out[name] = {"digest": digest.of_value(ended), "loss": loss.item()}
    torch.manual_seed(0)
    w, g = (
        torch.randn(8, 8).to(BF16),
        torch.randn(8, 8, generator=torch.Generator().manual_seed(rank)).to(BF16),
    )
    before = w.clone()
    part, whole = rounding.lower(step, seed=3)(w, g)
    out |= {
        "in place": digest.of_value([w, g, whole]),
        "updated": not w.equal(before),
        "parts": digest.of_value(part),
    }
    if ranks == 4:
        init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        w = torch.full((8, 8), 1.0).to(BF16)  # the shards hold the same numbers: what differs is noise
        result = rounding.lower(sharded, seed=3)(w, torch.full((8, 8), 0.3 + rank // 2).to(BF16))
        out["hybrid"] = digest.of_value([w, result])
    return out


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request, tmp_path_factory):
    """The results of the ranks, and in each what the report claims."""
    ranks, ones = request.param, [torch.ones(8, 8).to(BF16) for _ in range(2)]
    wrapped = replica.DataParallel(network())
    batch = torch.randn(8, 16).to(BF16), torch.randint(4, (8,))
    program, report = assigned(train, wrapped, optimizer_of(wrapped), *batch, world_size=ranks)
    given = {"w": replica.Equal(), "g": replica.PerReplica()}
    step, _ = assigned(in_place, *ones, inputs=given, world_size=ranks)
    given["w"] = replica.Partition([[0, 2], [1, 3]])
    sharded = assigned(hybrid, *ones, inputs=given, mesh={"dp": 2, "tp": 2})[0] if ranks == 4 else None
    store = tmp_path_factory.mktemp("ranks") / "store"
    values, codes = run_ranks(store, ranks, lowered_on_a_rank, ranks, program, step, sharded)
    assert codes == [0] * ranks
    claimed = all(report.is_replica_equal(name) for name in program.input_names if name not in "xy")
    return [{**one, "claimed": claimed} for one in values]


def ends(ranks, name):
    return {rank[name]["digest"] for rank in ranks}


@pytest.mark.slow
def test_replicas_stay_equal(ranks):
    """AdamW in pure bfloat16, data of its own on every rank, 20 steps: weights and state are bitwise equal, as claimed."""
    assert len(ends(ranks, "ddp")) == 1 and ranks[0]["claimed"]
    assert ends(ranks, "ddp") != ends(ranks, "another seed") and len(ends(ranks, "another seed")) == 1
    assert len({rank["ddp"]["loss"] for rank in ranks}) == len(ranks)


@pytest.mark.slow
def test_a_seed_for_each_rank_drifts(ranks):
    """Negative control: with a seed of its own, every rank ends with other weights."""
    assert len(ends(ranks, "a seed for each rank")) == len(ranks)


@pytest.mark.slow
def test_collectives_in_place_scattered_and_gathered(ranks):
    """`dist.all_reduce` in place and an update through a view are equal on all ranks; scattered parts are their own."""
    assert len({rank["in place"] for rank in ranks}) == 1 and ranks[0]["updated"]
    assert len({rank["parts"] for rank in ranks}) == len(ranks)


def test_hybrid_sharding_rounds_alike_over_dp_and_not_over_tp(ranks):
    """On a 2 x 2 mesh: replicas of a shard stay equal, the two shards, though equal before, round by numbers of their own."""
    if len(ranks) == 4:
        a, b, c, d = (rank["hybrid"] for rank in ranks)
        assert a == c and b == d and a != b
