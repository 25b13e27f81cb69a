"""FSDP2 under `run.steps(shards=)`: the bits of the replicated run, for any number of processes."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import distribute_tensor

import fsdp2_programs as programs
import samebits
import shard_programs

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = list(programs.PROGRAMS)
HALVES = [
    MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=dtype) for dtype in (None, torch.float32)
]
WORLDS = [2, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 3, 4))]


@pytest.fixture
def alone(forked):
    """Runs a function in a fresh process; returns its value."""

    def run(work, *args):
        ended = forked(work, *args)
        assert ended.code == 0
        return ended.value

    return run


def replicated(shards):
    return {name: programs.train(name, shards_model=False, shards=shards) for name in NAMES}


def sharded(shards):
    """All programs; half of them keep the whole weights from forward to backward."""
    return {
        name: programs.train(name, shards=shards, reshard_after_forward=number % 2 == 0)
        for number, name in enumerate(NAMES)
    }


@pytest.mark.parametrize("world_size", WORLDS)
def test_any_number_of_processes_ends_with_the_bits_of_the_replicated_run(world_size, ranks, alone):
    """Statistics, dropout, autocast, accumulation, unused layers, a GAN; some ranks have fewer shards than others."""
    shards = 6 if world_size == 4 else 3
    expected = alone(replicated, shards)
    assert ranks(world_size, sharded, shards)[0] == [expected] * world_size


def few_steps(shards_model):
    """Four steps of 12 shards, and rows of which 5 and 8 ranks have different numbers, or none."""
    return programs.train("Mlp", shards_model=shards_model, epochs=1, shards=12)


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [5, 8])
def test_five_and_eight_processes_end_with_the_bits_of_one(world_size, ranks, alone):
    """The digest of weights and optimizer is that of the replicated run in one process."""
    assert ranks(world_size, few_steps, True)[0] == [alone(few_steps, False)] * world_size


def killed(folder, name, kill_at, shards_model=True):
    return programs.train(name, shards_model=shards_model, run_dir=folder / name, kill_at=kill_at)


@pytest.mark.parametrize("name", ["Gan", *(pytest.param(one, marks=pytest.mark.slow) for one in NAMES)])
def test_a_commit_resumes_in_any_layout(name, ranks, alone, tmp_path):
    """Killed as FSDP2 on 2 ranks, resumed replicated in one process, and as FSDP2 on 3: the replicated run's digest."""
    expected = alone(plain, name)
    assert ranks(2, killed, tmp_path, name, 3, code=None)[1] == [-9] * 2
    assert ranks(1, killed, tmp_path, name, 5, False, code=None)[1] == [-9]
    assert ranks(3, killed, tmp_path, name, None)[0] == [expected] * 3


def plain(name):
    return programs.train(name, shards_model=False)


@pytest.mark.chaos
@pytest.mark.timeout(2400)
def test_200_steps_killed_and_resumed_with_other_numbers_and_layouts(ranks, alone, tmp_path):
    """FSDP2 on 3, 2 and 4 ranks, replicated on 2, killed at steps 40, 80, 120 and 160: one digest for each program."""
    for name in NAMES:
        expected = alone(long_run, tmp_path, name, None, False, None)
        for world_size, kill_at, shards_model in (
            (3, 40, True),
            (2, 80, True),
            (2, 120, False),
            (4, 160, True),
        ):
            _, codes = ranks(world_size, long_run, tmp_path, name, kill_at, shards_model, code=None)
            assert codes == [-9] * world_size
        assert ranks(2, long_run, tmp_path, name, None, True)[0] == [expected] * 2


def long_run(folder, name, kill_at, shards_model, run_dir=""):
    where = None if run_dir is None else folder / name
    return programs.train(name, shards_model=shards_model, epochs=50, run_dir=where, kill_at=kill_at)


def in_halves():
    return [programs.train(name, mp_policy=policy) for name in ("Mlp", "Gan") for policy in HALVES]


@pytest.mark.slow
def test_weights_gathered_in_bfloat16_have_one_digest(ranks):
    """With a MixedPrecisionPolicy the bits are other ones, and equal for 1, 2, 3 and 4 processes."""
    expected = ranks(1, in_halves)[0][0]
    for world_size in (2, 3, 4):
        assert ranks(world_size, in_halves)[0] == [expected] * world_size


def native():
    """Twelve shards, by FSDP2 alone: all ranks must run as many."""
    shards = 12
    samebits.set_random_seed(1)
    program = programs.Mlp(True)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for module in program.net.modules():
        if hasattr(module, "set_gradient_divide_factor"):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    for _ in range(2):
        for batch in shard_programs.loader():
            for shard in range(rank, shards, world_size):
                program.backward(0, *(part[shard::shards] for part in batch), 1 / shards)
            program.update(0)
    return programs.digest.of_value(programs.whole(program.net.state_dict()))


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_control_native_fsdp2_ends_with_other_bits(world_size, ranks):
    """FSDP2 without shards differs from one process of it, so the comparison can fail."""
    assert ranks(world_size, native)[0][0] != ranks(1, native)[0][0]


def sent(work, *args):
    """The bytes that this rank is asked to send to others in `work`: of weights, of gradients, and of all else."""
    size, found = dist.get_world_size(), {"weights": 0, "gradients": 0, "other": 0}
    with pytest.MonkeyPatch.context() as patch:

        def count(name, kind, share):
            call = getattr(dist, name)

            def counted(*args, **kwargs):
                found[kind] += share(*args, **kwargs)
                return call(*args, **kwargs)

            patch.setattr(dist, name, counted)

        count("all_gather_single", "weights", lambda output, own, **_: own.nbytes * (size - 1))
        count("reduce_scatter_single", "gradients", lambda *, input, **_: input.nbytes * (size - 1) // size)
        count(
            "batch_isend_irecv",
            "gradients",
            lambda ops: sum(o.tensor.nbytes for o in ops if o.op is dist.isend),
        )
        count("all_reduce", "other", lambda tensor, *_, **__: tensor.nbytes)
        work(*args)
    return found


def bytes_of_both():
    ours = sent(lambda: programs.train("Mlp", shards=12))
    return ours, sent(native)


@pytest.mark.parametrize("world_size", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_a_step_sends_the_bytes_of_native_fsdp2(world_size, ranks):
    """As many of weights, and of gradients, as FSDP2 that reduces in each backward; besides flags, at most 512 a step."""
    steps = 8
    for ours, theirs in ranks(world_size, bytes_of_both)[0]:
        assert theirs["gradients"] > steps * 12 // world_size * 4 * 108 * 17 * (world_size - 1) // world_size
        assert {**ours, "other": 0} == theirs
        assert 0 < ours["other"] <= 512 * steps


def start(net, gradient):
    """Gives each parameter a gradient of the same values, sharded or not, from before the loop."""
    for number, parameter in enumerate(net.parameters()):
        whole = torch.full(parameter.shape, -0.0 if number % 2 else 0.01)
        if gradient:
            like = hasattr(parameter, "placements")
            parameter.grad = (
                distribute_tensor(whole, parameter.device_mesh, parameter.placements) if like else whole
            )


def checkpointed(net):
    for index in (1, 3):
        net[index] = checkpoint_wrapper(net[index])


def noise(net):
    """Adds draws to weights, as the refusal of draws in the shape of rows says, and scales by a norm."""
    for parameter in net.parameters():
        value, drawn = parameter.detach(), torch.randn(parameter.shape)
        if hasattr(value, "placements"):
            drawn = distribute_tensor(drawn, value.device_mesh, value.placements)
        value.add_(drawn, alpha=1e-3).mul_(1 - 1e-3 * float(programs.whole(value).norm()))


def of_options(shards_model):
    """Gradients from before, forwards outside of the shards, noise, a validation of 4 batches, activation checkpointing."""
    samebits.set_random_seed(1)
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(108, 17), nn.ReLU(), nn.Linear(17, 4), nn.Linear(4, 4))
    checkpointed(net)
    if shards_model:
        for index in (1, 3):
            fully_shard(net[index])
        fully_shard(net)  # keeps its own parameters whole after a forward
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    found = []
    with samebits.Run(None, net=net, optimizer=optimizer) as run:
        for _, shards in run.steps(shard_programs.loader(), epochs=1, shards=3):
            start(net, True)
            for images, labels, _tokens in shards:
                (F.cross_entropy(net(images), labels) / 3).backward()
            noise(net)
            found.append(float(net(torch.ones(2, 3, 6, 6)).detach().sum()))
            optimizer.step()
            optimizer.zero_grad()
            batches = run.validate(samebits.data.DataLoader(shard_programs.Rows(), batch_size=12))
            with torch.no_grad():
                found.append(batches.sum([float(F.cross_entropy(net(one[0]), one[1])) for one in batches]))
        batches = run.validate(shard_programs.loader(), name="after")
        found.append(batches.sum([float(net(one[0]).detach().sum()) for one in batches]))
    return programs.digest.of_value([programs.whole(net.state_dict()), found])


@pytest.mark.parametrize("world_size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2))])
def test_the_other_steps_of_a_loop_have_the_bits_of_the_replicated_run(world_size, ranks, alone):
    """Gradients from before, forwards around the update, batches that ranks do not share evenly, checkpointing."""
    expected = alone(of_options, False)
    assert ranks(world_size, of_options, True)[0] == [expected] * world_size
