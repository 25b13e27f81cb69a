"""FSDP2 under `run.steps(shards=)`: what has no order of shards is refused by name, on all ranks, before a step."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import samebits
import shard_programs as programs
from samebits.errors import InvalidArgumentError, UnimplementedError

pytestmark = pytest.mark.usefixtures("one_thread")


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(108, 4))


def sharded(**options):
    return fully_shard(mlp(), **options)


def sgd(net):
    return torch.optim.SGD(net.parameters(), 0.1)


def steps(net, optimizer=None, body=None, after=None, skips=None):
    """Runs an epoch; `body` is called after each backward, `after` after the shards.

    `skips(step, shard)` is "forward" or "backward" for a shard of this rank that goes on before it.
    """
    samebits.set_random_seed(1)
    optimizer = sgd(net) if optimizer is None else optimizer
    with samebits.Run(None, net=net, optimizer=optimizer) as run:
        for step, shards in run.steps(programs.loader(), epochs=1, shards=3):
            for number, (images, labels, _) in enumerate(shards):
                skipped = skips and skips(step.number, number)
                if skipped == "forward":
                    continue
                loss = F.cross_entropy(net(images), labels) / 3
                if skipped == "backward":
                    continue
                loss.backward()
                if body is not None:
                    body(net, step)
            if after is not None:
                after(net)
            optimizer.step()
            optimizer.zero_grad()


def mesh(*sizes):
    return dist.init_device_mesh("cpu", sizes, mesh_dim_names="ab"[: len(sizes)])


def on_meta():
    with torch.device("meta"):
        net = mlp()
    return fully_shard(net)


def compiled():
    net = sharded()
    net.compile()
    return net


def scaled(method, *args):
    net = sharded()
    getattr(net, method)(*args)
    return net


def tensor_parallel(placement):
    net = mlp()
    weight = distribute_tensor(net[1].weight.detach(), mesh(2), [placement])
    net[1].weight = nn.Parameter(weight)
    return net


def columns(parameter):
    return Shard(1) if parameter.ndim == 2 else Shard(0)


REFUSED = {
    "optimizer of other parameters": (
        lambda: (net := mlp(), made := sgd(net), fully_shard(net), made)[::3],
        "before fully_shard",
    ),
    "hsdp": (lambda: sharded(mesh=mesh(1, 2)), "mesh of several dimensions"),
    "columns": (lambda: sharded(shard_placement_fn=columns), "by rows"),
    "offload": (lambda: sharded(offload_policy=CPUOffloadPolicy(pin_memory=False)), "CPUOffloadPolicy"),
    "meta": (on_meta, "meta device"),
    "compile": (compiled, "torch.compile"),
    "compiled around": (lambda: torch.compile(sharded()), "torch.compile"),
    "factor": (lambda: scaled("set_gradient_divide_factor", 2.0), "divide the loss"),
    "no sync": (lambda: scaled("set_requires_gradient_sync", False), "set_requires_gradient_sync"),
    "own reduce-scatter": (lambda: scaled("set_custom_reduce_scatter", object()), "set_symm_mem_for_comm"),
    "tensor parallel": (lambda: tensor_parallel(Shard(0)), "expert parallelism"),
    "replicated DTensor": (lambda: tensor_parallel(Replicate()), "expert parallelism"),
    "FSDP1": (
        lambda: FullyShardedDataParallel(mlp(), device_id=torch.device("cpu")),
        "distributed.fsdp.fully_shard",
    ),
    "DeepSpeed": (
        lambda: type("DeepSpeedEngine", (nn.Sequential,), {})(mlp()),
        "distributed.fsdp.fully_shard",
    ),
}
OPTIMIZERS = {
    "Adafactor": lambda net: torch.optim.Adafactor(net.parameters()),
    "LBFGS": lambda net: torch.optim.LBFGS(net.parameters()),
    "Own": lambda net: type("Own", (torch.optim.SGD,), {})(net.parameters(), 0.1),
}
"""Muon takes matrices only: this model has a bias."""
BY_NUMBER = {
    "clip_grad_norm_": lambda net: nn.utils.clip_grad_norm_(net.parameters(), 1.0),
    "clip_grad_norm_ by loops": lambda net: nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=False),
    "norm": lambda net: net[1].weight.grad.norm().full_tensor(),
    "sum of columns": lambda net: net[1].weight.grad.div_(net[1].weight.grad.sum(0)),
    "product of matrices": lambda net: (net[1].weight.T @ net[1].weight).full_tensor(),
    "item": lambda net: net[1].weight.sum().item(),
    "float of a norm": lambda net: float(net[1].weight.grad.norm()),
    "bool of a flag": lambda net: bool(net[1].weight.isnan().any()),
    "randn_like": lambda net: torch.randn_like(net[1].weight),
    "normal_": lambda net: net[1].weight.detach().normal_(),
    "exponential_": lambda net: torch.empty_like(net[1].weight).exponential_(),
    "dropout": lambda net: F.dropout(net[1].weight),
    "init": lambda net: nn.init.kaiming_uniform_(net[1].weight),
}
"""Torch computes these by the number of ranks."""


def exact(net):
    """The same at any number: integers, maxima, whole tensors, rows, single elements."""
    weight = net[1].weight.detach()
    assert int((weight == 0).sum().full_tensor()) >= 0
    assert not bool(weight.isnan().any().full_tensor())
    assert float(weight.abs().max().full_tensor()) == float(weight.full_tensor().abs().max())
    assert float(weight.full_tensor().norm()) > 0
    assert float(net[1].bias.detach().full_tensor().sum().item()) == net[1].bias.full_tensor().sum()
    assert F.embedding(torch.tensor([1]), weight.full_tensor()).shape == (1, 108)
    weight.sum(1).exp_()
    weight.add_(torch.randn(5)[0], alpha=1e-3)
    nn.utils.clip_grad_value_(net.parameters(), 1.0)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0, float("inf"))
    samebits.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.unscale_(sgd(net))


def penalized(net, step):
    net[1].weight.full_tensor().square().sum().backward()


def twice(net, step):
    net(torch.ones(2, 3, 6, 6)).sum().backward()


def all_refused():
    for name, (make, message) in REFUSED.items():
        net = make()
        net, optimizer = net if isinstance(net, tuple) else (net, None)
        with pytest.raises((UnimplementedError, InvalidArgumentError), match=message):
            steps(net, optimizer)

    for make in OPTIMIZERS.values():
        net = sharded()
        with pytest.raises(UnimplementedError, match="AdamW, NAdam"):
            steps(net, make(net))
    with pytest.raises(UnimplementedError, match="Leave fused out"):
        net = sharded()
        steps(net, torch.optim.AdamW(net.parameters(), fused=True))
    with pytest.raises(UnimplementedError, match=r"Muon, and only optimizers"):
        net = sharded()
        steps(net, torch.optim.Muon([net[1].weight]))
    return True


def computed_by_number():
    for compute in BY_NUMBER.values():
        with pytest.raises(
            UnimplementedError, match=r"samebits\.nn\.utils\.clip_grad_norm_.*full_tensor\(\)"
        ):
            steps(sharded(), after=compute)
    steps(sharded(), after=exact)
    weight = sharded()[1].weight  # control: torch's own, outside of a run
    return (
        float(weight.norm()),
        float(weight.norm().full_tensor()),
        torch.randn_like(weight).to_local().tolist(),
    )


def refused_in_the_loop():
    with pytest.raises(InvalidArgumentError, match="after the loop began"):
        net = mlp()
        steps(net, after=fully_shard)
    with pytest.raises(UnimplementedError, match="backward once in a shard"):
        steps(sharded(), body=twice)
    with pytest.raises(UnimplementedError, match="penalties of weights in the model's forward"):
        steps(sharded(), body=penalized)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for what in ("forward", "backward") if world_size > 1 else ():
        with pytest.raises(InvalidArgumentError, match=f"a shard has no {what}.*not by `continue`"):
            steps(sharded(), skips=lambda step, shard, what=what: step == 1 and shard == rank == 0 and what)
    for what in ("forward", "backward"):  # all ranks: none waits
        steps(sharded(), skips=lambda step, shard, what=what: step == 1 and what)
    steps(sharded())  # what a refused loop has replaced is back
    return True


def test_each_use_of_fsdp2_without_an_order_of_shards_is_refused(ranks):
    """Meshes, placements, offload, meta weights, compile, scaled sums, DTensors of others, FSDP1, DeepSpeed, optimizers."""
    assert ranks(2, all_refused)[0] == [True] * 2


def test_sums_and_draws_that_follow_the_number_of_ranks_are_refused(ranks):
    """Torch's norm, sums, item(), draws in the shape of rows; not maxima, counts, whole tensors. Control: torch's own."""
    (first, of_all, drawn), (second, again, also_drawn) = ranks(2, computed_by_number)[0]
    assert first != second != of_all == again  # item() reads a rank's part
    assert drawn == also_drawn  # the rows of one rank are drawn for all


@pytest.mark.parametrize("world_size", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_loop_that_loses_the_order_raises(world_size, ranks):
    """A model sharded after the loop began, two backwards in a shard, a penalty; one shard without forward or backward."""
    assert ranks(world_size, refused_in_the_loop)[0] == [True] * world_size
