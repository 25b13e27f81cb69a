"""Two ranks on gloo: replicas that round stochastically stay bitwise equal, shards round with numbers of their own."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP

import samebits
from gloo_ranks import run_ranks
from samebits import _digest as digest
from samebits.rounding import optim


def model():
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)]
    return torch.nn.Sequential(*layers).to(torch.bfloat16)


def train(net, make, steps=20):
    optimizer = make(net.parameters())
    data = torch.Generator().manual_seed(100 + dist.get_rank())  # every rank has data of its own
    for _ in range(steps):
        x = torch.randn(8, 16, generator=data).to(torch.bfloat16)
        optimizer.zero_grad()
        net(x).float().square().mean().backward()
        optimizer.step()
    return net


def ddp(make, seed):
    net = DDP(model())
    samebits.set_random_seed(seed)
    return digest.of_value([p.detach() for p in train(net, make).parameters()])


def rounded_once(mesh, placements):
    """The same exact value everywhere, half a step above a bfloat16, after one step."""
    samebits.set_random_seed(5)
    value = torch.full((4, 64), 1.0, dtype=torch.bfloat16)
    param = torch.nn.Parameter(distribute_tensor(value, mesh, placements))
    param.grad = distribute_tensor(torch.ones_like(value), mesh, placements)
    optim.SGD([param], lr=2.0**-8, maximize=True).step()
    return param.to_local().float().flatten().tolist()


def adamw(parameters):
    return optim.AdamW(parameters, lr=1e-3)


def trained_on_a_rank():
    mesh = init_device_mesh("cpu", (2,))
    out = {
        "adamw": ddp(adamw, 7),
        "sgd": ddp(lambda parameters: optim.SGD(parameters, lr=0.02, momentum=0.9), 7),
        "a seed for each rank": ddp(adamw, 7 + dist.get_rank()),
        "sharded": rounded_once(mesh, [Shard(0)]),
        "replicated": rounded_once(mesh, [Replicate()]),
    }
    net = model()
    fully_shard(net)
    samebits.set_random_seed(7)
    train(net, adamw, 5)
    whole = [p.full_tensor().detach() for p in net.parameters()]
    out["fsdp local"] = [list(p.to_local().shape) for p in net.parameters()]
    return {**out, "fsdp": digest.of_value(whole), "fsdp finite": all(p.isfinite().all() for p in whole)}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The results of the two ranks."""
    values, codes = run_ranks(tmp_path_factory.mktemp("ranks") / "store", 2, trained_on_a_rank)
    assert codes == [0, 0]
    return values


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_replicas_stay_equal(ranks, name):
    """Under DDP, with data of their own and nothing configured, both ranks have the same bfloat16 weights after 20 steps."""
    assert ranks[0][name] == ranks[1][name]


def test_a_seed_for_each_rank_drifts(ranks):
    """Negative control: with a seed of its own on every rank, the weights of the replicas differ."""
    assert ranks[0]["a seed for each rank"] != ranks[1]["a seed for each rank"]


def test_shards_round_with_numbers_of_their_own(ranks):
    """Equal values in the two shards of a DTensor are rounded differently, half of them up; replicated ones alike."""
    one, other = (rank["sharded"] for rank in ranks)
    assert len(one) == len(other) == 128 and one != other
    for shard in (one, other):
        assert set(shard) == {1.0, 1.0 + 2.0**-7} and 32 < shard.count(1.0) < 96
    assert 32 < sum(a == b for a, b in zip(one, other, strict=True)) < 96  # as independent ones agree
    assert ranks[0]["replicated"] == ranks[1]["replicated"]


def test_fsdp2_trains(ranks):
    """FSDP2's parameters, sharded over the two ranks, are trained as they are: every rank has half of each."""
    assert ranks[0]["fsdp"] == ranks[1]["fsdp"] and ranks[0]["fsdp finite"]
    assert ranks[0]["fsdp local"] == [[16, 16], [16], [2, 32], [2]]
