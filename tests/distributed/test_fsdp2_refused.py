"""FSDP2 under `run.steps(shards=)`: what has no order of shards is refused by name, on all ranks, before a step."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
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


def steps(net, optimizer=None, body=None, clip=None):
    """Runs an epoch; `body` is called after each backward, `clip` before each update."""
    samebits.set_random_seed(1)
    optimizer = sgd(net) if optimizer is None else optimizer
    with samebits.Run(None, net=net, optimizer=optimizer) as run:
        for step, shards in run.steps(programs.loader(), epochs=1, shards=3):
            for images, labels, _ in shards:
                (F.cross_entropy(net(images), labels) / 3).backward()
                if body is not None:
                    body(net, step)
            if clip is not None:
                clip(net.parameters(), 1.0)
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
}
OPTIMIZERS = {
    "Adafactor": lambda net: torch.optim.Adafactor(net.parameters()),
    "LBFGS": lambda net: torch.optim.LBFGS(net.parameters()),
    "Own": lambda net: type("Own", (torch.optim.SGD,), {})(net.parameters(), 0.1),
}
"""Muon takes matrices only: this model has a bias."""


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
    with pytest.raises(UnimplementedError, match=r"samebits\.nn\.utils\.clip_grad_norm_"):
        steps(sharded(), clip=nn.utils.clip_grad_norm_)
    return True


def refused_in_the_loop():
    with pytest.raises(InvalidArgumentError, match="after the loop began"):
        net = mlp()
        steps(net, clip=lambda *_: fully_shard(net))
    with pytest.raises(UnimplementedError, match="backward once in a shard"):
        steps(sharded(), body=twice)
    steps(sharded())  # what a refused loop has replaced is back
    return True


def test_each_use_of_fsdp2_without_an_order_of_shards_is_refused(ranks):
    """Meshes, placements, offload, meta weights, compile, scaled sums, DTensors of others, optimizers, torch's norm."""
    assert ranks(2, all_refused)[0] == [True] * 2


@pytest.mark.parametrize("world_size", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_loop_that_loses_the_order_raises(world_size, ranks):
    """A model sharded after the loop began, two backwards in a shard: with one process, too."""
    assert ranks(world_size, refused_in_the_loop)[0] == [True] * world_size
