"""FSDP2 by Fabric and by Accelerate, under `run.steps(shards=)`: refused by name, and the cure that is named works."""

import os

import pytest

fabric = pytest.importorskip("lightning.fabric")
accelerate = pytest.importorskip("accelerate")

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import samebits
import shard_programs as programs
from samebits.errors import InvalidArgumentError, UnimplementedError

pytestmark = pytest.mark.usefixtures("one_thread")


def by_fabric(net):
    strategy = fabric.strategies.ModelParallelStrategy(
        lambda module, mesh: fully_shard(module, mesh=mesh["data_parallel"]), 2, 1
    )
    runs = fabric.Fabric(accelerator="cpu", devices=2, strategy=strategy)
    runs.launch()
    net = runs.setup(net)
    return net, runs.setup_optimizers(torch.optim.SGD(net.parameters(), 0.1))


def by_accelerate(net):
    fully_shard(net)
    return net, accelerate.Accelerator(cpu=True).prepare(torch.optim.SGD(net.parameters(), 0.1))


def by_ddp_of_accelerate(net):
    return accelerate.Accelerator(cpu=True).prepare(net, torch.optim.SGD(net.parameters(), 0.1))


def by_torch(net):
    fully_shard(net)
    return net, torch.optim.SGD(net.parameters(), 0.1)


def train(prepare):
    samebits.set_random_seed(1)
    net, optimizer = prepare(nn.Sequential(nn.Flatten(), nn.Linear(108, 4)))
    with samebits.Run(None, net=net, optimizer=optimizer) as run:
        for _, shards in run.steps(programs.loader(), epochs=1, shards=3):
            for images, labels, _ in shards:
                (F.cross_entropy(net(images), labels) / 3).backward()
            optimizer.step()
            optimizer.zero_grad()


def all_refused():
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, GROUP_RANK="0", WORLD_SIZE=size, LOCAL_WORLD_SIZE=size)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29500")  # as torchrun; nobody connects to it
    for prepare, package in ((by_fabric, "lightning"), (by_accelerate, "accelerate")):
        with pytest.raises(UnimplementedError, match=f"of {package}.*Call torch's fully_shard instead"):
            train(prepare)
    with pytest.raises(InvalidArgumentError, match="DistributedDataParallel.*Leave the wrapper out"):
        train(by_ddp_of_accelerate)
    train(by_torch)
    return True


def test_fsdp2_of_fabric_and_accelerate_is_refused(ranks):
    """ModelParallelStrategy, Accelerate's optimizer and its DDP raise on both ranks; torch's fully_shard trains."""
    assert ranks(2, all_refused)[0] == [True] * 2
