"""What shards cannot do is refused by name, on all ranks, before anything is changed; what the message says to type works."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import samebits
import shard_programs as programs
from samebits.errors import (
    InvalidArgumentError,
    RanksError,
    RunDirectoryError,
    RunMismatchError,
    UnimplementedError,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def train(loader=None, net=None, shards=6, epochs=1, run_dir=None, body=None, **objects):
    """One run; the body of a step is `body(run, step, shards, net)`, else the usual one."""
    samebits.set_random_seed(1)
    net = programs.Mlp().model() if net is None else net
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with samebits.Run(run_dir, net=net, optimizer=optimizer, **objects) as run:
        loader = programs.loader() if loader is None else loader
        for step, own in run.steps(loader, epochs=epochs, shards=shards):
            (body or usual)(run, step, own, net, optimizer)


def usual(run, step, own, net, optimizer):
    for images, labels, _ in own:
        F.cross_entropy(net(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def rows(batch_size, **options):
    return samebits.data.DataLoader(programs.Rows(), batch_size=batch_size, seed=1, **options)


SOME = torch.utils.data.Subset(programs.Rows(), range(46))
"""Rows of which 12 at a time leave 10."""


def hooked():
    net = programs.Mlp().model()
    net[1].weight.register_post_accumulate_grad_hook(lambda p: None)
    return net


LOADERS = {
    "a torch loader": (lambda: DataLoader(programs.Rows(), 12), "samebits.data.DataLoader"),
    "a list": (lambda: [torch.zeros(12, 3)] * 3, "samebits.data.DataLoader"),
    "batches that 6 does not divide": (lambda: rows(10), "multiple of 6"),
    "a smaller last batch": (lambda: samebits.data.DataLoader(SOME, batch_size=12, seed=1), "drop_last=True"),
    "a sampler that shares out": (
        lambda: rows(12, sampler=DistributedSampler(programs.Rows(), 1, 0)),
        "Leave it out",
    ),
    "an item that is a batch": (lambda: rows(None), "batch_size"),
    "a pipeline without batches": (
        lambda: samebits.data.Pipeline.from_source(programs.Rows()),
        "must end in batches",
    ),
    "a pipeline with ranks": (
        lambda: (
            samebits.data.Pipeline.from_source(programs.Rows()).batch(12).with_options(rank=0, world_size=1)
        ),
        "Leave it out",
    ),
    "a pipeline's smaller last batch": (
        lambda: samebits.data.Pipeline.from_source(SOME).batch(12),
        "drop_remainder=True",
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_without_global_batches_is_refused(name):
    """The message names the loader and the line to type; nothing was trained."""
    make, cure = LOADERS[name]
    net = programs.Mlp().model()
    before = [one.clone() for one in net.parameters()]
    with pytest.raises(InvalidArgumentError, match=cure) as caught:
        train(make(), net)
    assert "shards=6" in str(caught.value)
    assert all(map(torch.equal, before, net.parameters()))


def test_what_the_messages_say_to_type_works():
    """A batch_size that 6 divides, drop_last and drop_remainder: the loaders are taken."""
    train(samebits.data.DataLoader(SOME, batch_size=12, seed=1, drop_last=True))
    train(samebits.data.Pipeline.from_source(SOME).batch(12, drop_remainder=True))


MODULES = {
    "SyncBatchNorm": (
        lambda: nn.Sequential(programs.Mlp().model(), nn.SyncBatchNorm(4)),
        "torch.nn.BatchNorm",
    ),
    "sparse": (
        lambda: nn.Sequential(programs.Mlp().model(), nn.Embedding(3, 2, sparse=True)),
        "sparse=False",
    ),
    "a hook of the user's": (hooked, "register_post_accumulate_grad_hook"),
    "DataParallel": (lambda: nn.DataParallel(programs.Mlp().model()), "Leave the wrapper out"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_module_that_sums_in_another_way_is_refused(name):
    """Its path is named, and the cure."""
    make, cure = MODULES[name]
    with pytest.raises((InvalidArgumentError, UnimplementedError), match=cure) as caught:
        train(net=make())
    assert "net" in str(caught.value)


def breaks(run, step, own, net, optimizer):
    for images, labels, _ in own:
        F.cross_entropy(net(images), labels).backward()
        break
    optimizer.step()


def steps_inside(run, step, own, net, optimizer):
    for images, labels, _ in own:
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()


def backward_outside(run, step, own, net, optimizer):
    usual(run, step, own, net, optimizer)
    sum(one.sum() for one in net.parameters()).backward()


def zeroes(run, step, own, net, optimizer):
    for images, labels, _ in own:
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()


def zeroes_the_model(run, step, own, net, optimizer):
    for images, labels, _ in own:
        F.cross_entropy(net(images), labels).backward()
        net.zero_grad(set_to_none=False)


def leaves(run, step, own, net, optimizer):
    next(iter(own))


def counts(run, step, own, net, optimizer):
    len(own)


def too_few_values(run, step, own, net, optimizer):
    usual(run, step, own, net, optimizer)
    own.sum([1.0] * (run.rank == 0))


def inner_shards(run, step, own, net, optimizer):
    usual(run, step, own, net, optimizer)
    run.steps(programs.loader(), name="inner", shards=6)


BODIES = {
    breaks: (InvalidArgumentError, "has not come to its end"),
    steps_inside: (InvalidArgumentError, "step the optimizer after the loop"),
    backward_outside: (InvalidArgumentError, "a backward outside"),
    leaves: (InvalidArgumentError, "has not come to its end"),
    zeroes: (InvalidArgumentError, "behind the loop"),
    zeroes_the_model: (InvalidArgumentError, "behind the loop"),
    counts: (TypeError, "step.shards"),
    too_few_values: (RanksError, "one value for each shard"),
    inner_shards: (InvalidArgumentError, "outermost"),
}


def refused(body):
    kind, text = BODIES[body]
    with pytest.raises(kind, match=text):
        train(body=body, epochs=2)
    return True


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_body_that_loses_gradients_is_refused(body, world_size, ranks):
    """On one process and on all of several: the same message."""
    assert ranks(world_size, refused, body)[0] == [True] * world_size


def clips(run, step, own, net, optimizer):
    for images, labels, _ in own:
        F.cross_entropy(net(images), labels).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)


def test_one_process_sees_gradients_that_are_changed_between_shards():
    """Clipping in the loop over shards is found by torch's count of writes, and said with the cure."""
    with pytest.raises(InvalidArgumentError, match="behind the loop"):
        train(body=clips)


def of_an_attack(run, step, own, net, optimizer):
    """An optimizer of other tensors steps within a shard, as an adversarial example is made."""
    for images, labels, _ in own:
        noise = torch.zeros_like(images, requires_grad=True)
        attack = torch.optim.SGD([noise], 0.1)
        for _ in range(2):
            attack.zero_grad()
            (noise.grad,) = torch.autograd.grad(F.cross_entropy(net(images + noise), labels), noise)
            attack.step()
        F.cross_entropy(net(images + noise.detach()), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def attacked():
    train(body=of_an_attack)
    return True


@pytest.mark.parametrize("world_size", [1, 2])
def test_an_optimizer_of_other_tensors_may_step_in_a_shard(world_size, ranks):
    """No false alarm: it has no parameter of the run."""
    assert ranks(world_size, attacked)[0] == [True] * world_size


def test_torchrun_without_a_process_group_is_named(monkeypatch, tmp_path):
    """The message has the line to type, for the rank that got the directory and for the others."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InvalidArgumentError, match=r"init_process_group\("):
        train(run_dir=tmp_path / "run")


def enter(run_dir):
    os.environ["WORLD_SIZE"] = "2"
    with pytest.raises(RunDirectoryError, match=r"init_process_group\("), samebits.Run(run_dir):
        pass
    del os.environ["WORLD_SIZE"]
    with pytest.raises(RunDirectoryError, match="Wait until it ends"), samebits.Run(run_dir):
        pass
    return True


def test_a_directory_that_another_rank_holds_names_the_missing_group(forked, tmp_path):
    """Two ranks without a process group are two runs; outside of torchrun the message is as ever (control)."""
    samebits.set_random_seed(1)
    with samebits.Run(tmp_path / "run"):
        assert forked(enter, tmp_path / "run").value


def other_shards():
    with pytest.raises(RunMismatchError, match="shards is"):
        train(shards=(6, 3)[dist.get_rank()])
    with pytest.raises(InvalidArgumentError, match="at most 1"):
        train(shards=1)
    with pytest.raises(InvalidArgumentError, match="Leave the wrapper out"):
        train(net=DistributedDataParallel(programs.Mlp().model()))
    return True


def test_ranks_that_are_not_alike_are_refused(ranks):
    """Other shards, fewer shards than ranks, a wrapper: all ranks raise."""
    assert ranks(2, other_shards)[0] == [True] * 2


def unequal_state(run_dir, name):
    def body(run, step, own, net, optimizer):
        usual(run, step, own, net, optimizer)
        if name == "state":
            run.state.mean = float(dist.get_rank())
        else:
            net[1].weight.data += dist.get_rank()

    with pytest.raises(RanksError, match="mean" if name == "state" else "weight") as caught:
        train(body=body, run_dir=run_dir, save="explicit")
    return str(caught.value)


@pytest.mark.parametrize("name", ["state", "weights"])
def test_what_differs_between_ranks_is_in_no_commit(name, ranks, tmp_path):
    """The path, the rank and the cure are named, and nothing is committed."""
    from samebits.checkpoint._store import CommitStore

    messages, _ = ranks(2, unequal_state, tmp_path / "run", name)
    assert messages[0] == messages[1] and "rank 1" in messages[0] and "shards.sum" in messages[0]
    assert CommitStore(tmp_path / "run").newest() is None


def test_a_run_keeps_its_number_of_shards(tmp_path):
    """A resume with other shards, or without, is refused; so is a run without shards that gets some."""
    train(run_dir=tmp_path / "run")
    for shards in (3, None):
        with pytest.raises(RunMismatchError, match="shards=6"):
            train(run_dir=tmp_path / "run", shards=shards, epochs=2, body=lambda *_: None)
    net = programs.Mlp().model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    samebits.set_random_seed(1)
    with samebits.Run(tmp_path / "other", net=net, optimizer=optimizer) as run:
        for _ in run.steps(programs.loader(), epochs=1):
            pass
    with pytest.raises(RunMismatchError, match="shards=None"):
        train(run_dir=tmp_path / "other", epochs=2)


def test_a_replay_check_is_refused():
    """It would compute the backward of a shard twice."""
    with pytest.raises(InvalidArgumentError, match="Leave it out"):
        train(replay_check="1%")
