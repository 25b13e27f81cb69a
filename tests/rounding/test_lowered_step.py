"""Real ranks on gloo: a lowered training step in bfloat16 keeps replicas bitwise equal, over 2 and 4 processes."""

import json
import os
import subprocess
import sys

import pytest

RANK = """
import hashlib, json, sys
import torch, torch.distributed as dist
import torch.distributed._functional_collectives as fc
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from samebits import replica, rounding

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
BF16, STEPS = torch.bfloat16, 20

def digest(tensors):
    return hashlib.sha256(b"".join(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)).hexdigest()

def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4)).to(BF16)

def optimizer_of(model):  # with its state: as after a first step
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

def captured(step, wrapped):
    model = wrapped(network())
    args = model, optimizer_of(model), torch.randn(8, 16).to(BF16), torch.randint(4, (8,))
    found = replica.capture(step, *args, world_size=ranks)
    report = replica.analyze(found)
    rounding.assign_methods(found, report)
    return found, report

def hybrid(w, g, mesh):  # a shard of each weight in tp, replicated over dp: the gradient is summed over dp
    w.sub_(fc.all_reduce(g, "sum", (mesh, 0)), alpha=0.003)
    return w * 1.7

def in_place(w, g):
    dist.all_reduce(g)
    w.view(-1)[:32].add_(g.view(-1)[:32], alpha=-0.003)
    part = fc.reduce_scatter_tensor(w * 1.7, "sum", 0, dist.group.WORLD)
    return part, fc.all_gather_tensor(part, 0, dist.group.WORLD)

program, report = captured(train, replica.DataParallel)
step = replica.capture(in_place, torch.ones(8, 8).to(BF16), torch.ones(8, 8).to(BF16), world_size=ranks)
rounding.assign_methods(step, replica.analyze(step, {"w": replica.Equal(), "g": replica.PerReplica()}))
if ranks == 4:
    sharded = replica.capture(hybrid, torch.ones(8, 8).to(BF16), torch.ones(8, 8).to(BF16), mesh={"dp": 2, "tp": 2})
    classes = replica.analyze(sharded, {"w": replica.Partition([[0, 2], [1, 3]]), "g": replica.PerReplica()})
    rounding.assign_methods(sharded, classes)

dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
out = {}

def run(name, seed):
    model = replica.DataParallel(network())
    optimizer = optimizer_of(model)
    lowered = rounding.lower(program, seed=seed)
    data = torch.Generator().manual_seed(100 + rank)  # every rank has data of its own
    for _ in range(STEPS):
        x = torch.randn(8, 16, generator=data).to(BF16)
        loss = lowered(model, optimizer, x, x[:, :4].float().argmax(1))
    state = [v for entries in optimizer.state.values() for v in entries.values()]
    out[name] = {"digest": digest([*model.parameters(), *state]), "loss": loss.item()}

run("ddp", 7)
run("another seed", 8)
run("a seed for each rank", 7 + rank)
out["claimed"] = all(report.is_replica_equal(name) for name in program.input_names if name not in "xy")

torch.manual_seed(0)
w, g = torch.randn(8, 8).to(BF16), torch.randn(8, 8, generator=torch.Generator().manual_seed(rank)).to(BF16)
before = w.clone()
part, whole = rounding.lower(step, seed=3)(w, g)
out["in place"] = [digest([w]), digest([g]), digest([whole])]
out["updated"] = not w.equal(before)
out["parts"] = digest([part])
if ranks == 4:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    w = torch.full((8, 8), 1.0).to(BF16)  # the shards hold the same numbers: what differs is noise
    result = rounding.lower(sharded, seed=3)(w, torch.full((8, 8), 0.3 + rank // 2).to(BF16))
    out["hybrid"] = [digest([w]), digest([result])]
dist.barrier()
dist.destroy_process_group()
print(json.dumps(out))
"""


def spawned(folder, number):
    script = folder / "rank.py"
    script.write_text(RANK)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(number), str(folder)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for rank in range(number)
    ]  # fmt: skip
    outputs = [process.communicate(timeout=280) for process in started]
    for process, (_, errors) in zip(started, outputs, strict=True):
        assert process.returncode == 0, errors[-4000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request, tmp_path_factory):
    """What the ranks print."""
    return spawned(tmp_path_factory.mktemp("ranks"), request.param)


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
    assert len({json.dumps(rank["in place"]) for rank in ranks}) == 1 and ranks[0]["updated"]
    assert len({rank["parts"] for rank in ranks}) == len(ranks)


def test_hybrid_sharding_rounds_alike_over_dp_and_not_over_tp(ranks):
    """On a 2 x 2 mesh: replicas of a shard stay equal, the two shards, though equal before, round by numbers of their own."""
    if len(ranks) == 4:
        (a, b, c, d) = (rank["hybrid"] for rank in ranks)
        assert a == c and b == d and a[0] != b[0] and a[1] != b[1]
