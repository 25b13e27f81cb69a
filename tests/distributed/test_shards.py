"""`run.steps(shards=)`: any number of processes ends with the bits of one, and that with those of plain PyTorch."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import samebits
import shard_programs as programs
from samebits import _digest as digest

pytestmark = pytest.mark.usefixtures("one_thread")
WORLDS = [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 4, 5, 6))]


@pytest.fixture
def alone(forked):
    """Runs a function in a fresh process; returns its value."""

    def run(work, *args):
        ended = forked(work, *args)
        assert ended.code == 0
        return ended.value

    return run


def of_all(names, epochs=3):
    return {name: programs.train(name, epochs) for name in names}


def of_plain(epochs=3):
    return {name: programs.plain(name, epochs) for name, one in programs.PROGRAMS.items() if not one.draws}


def test_one_process_ends_with_the_bits_of_plain_pytorch(alone):
    """In a program that draws nothing and changes no buffer, shards are plain gradient accumulation."""
    whole, ours = alone(of_plain), alone(of_all, list(programs.PROGRAMS))
    assert whole == {name: ours[name] for name in whole}
    assert len(whole) == 4


@pytest.mark.parametrize("world_size", WORLDS)
def test_any_number_of_processes_ends_with_the_bits_of_one(world_size, ranks, alone):
    """Seven programs: statistics, dropout, clipping, accumulation, autocast, averages, a GAN, rounding."""
    expected = alone(of_all, list(programs.PROGRAMS))
    values, _ = ranks(world_size, of_all, list(programs.PROGRAMS))
    assert values == [expected] * world_size


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_control_plain_ddp_ends_with_other_bits(world_size, ranks, alone):
    """DistributedDataParallel over the same shards differs from one process, so the comparison can fail."""
    expected = alone(of_all, ["Mlp"])["Mlp"]
    values, _ = ranks(world_size, ddp)
    assert values[0] != expected


def ddp():
    samebits.set_random_seed(1)
    program = programs.Mlp()
    net, total = DistributedDataParallel(program.net), 0.0
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for _ in range(3):
        for images, labels, _tokens in programs.loader():
            own = range(rank, programs.SHARDS, world_size)
            for shard in own:
                with net.no_sync() if shard != own[-1] else torch.enable_grad():
                    images_of, labels_of = (part[shard :: programs.SHARDS] for part in (images, labels))
                    (F.cross_entropy(net(images_of), labels_of) * world_size / programs.SHARDS).backward()
            program.update(0)
    return programs.ending(program, total)


def of_several_kills(folder, name, sizes):
    return programs.train(name, run_dir=folder / name, kill_at=sizes)


@pytest.mark.parametrize(
    "name", ["Convnet", *(pytest.param(one, marks=pytest.mark.slow) for one in ("Transformer", "Gan"))]
)
def test_a_commit_resumes_with_any_number_of_processes(name, ranks, alone, tmp_path):
    """Killed with 3 processes, resumed with 2 and killed, resumed with 1: the digest is that of one process."""
    expected = alone(of_all, [name])[name]
    for world_size, kill_at in ((3, 3), (2, 7)):
        _, codes = ranks(world_size, of_several_kills, tmp_path, name, kill_at, code=None)
        assert codes == [-9] * world_size
    assert alone(of_several_kills, tmp_path, name, None) == expected


@pytest.mark.slow
def test_200_steps_of_all_programs_killed_and_resumed_with_other_numbers(ranks, alone, tmp_path):
    """Killed with 3, 2, 4 and 1 processes at steps 40, 80, 120 and 160 of a program: one digest for each."""
    expected = alone(of_all, list(programs.PROGRAMS), 50)
    whole = alone(of_plain, 50)
    assert whole == {name: expected[name] for name in whole}
    for name in programs.PROGRAMS:
        for world_size, kill_at in ((3, 40), (2, 80), (4, 120), (1, 160)):
            _, codes = ranks(world_size, long_and_killed, tmp_path, name, kill_at, code=None)
            assert codes == [-9] * world_size
        values, _ = ranks(2, long_and_killed, tmp_path, name, None)
        assert values == [expected[name]] * 2


def long_and_killed(folder, name, kill_at):
    return programs.train(name, epochs=50, run_dir=folder / name, kill_at=kill_at)


def switched(across):
    samebits.enable_op_determinism(across=across)
    return of_all(["Convnet", "Transformer"])


@pytest.mark.slow
@pytest.mark.parametrize("across", ["runs", "threads"])
def test_the_bits_do_not_lean_on_where_torch_puts_a_tensor(across, ranks, alone):
    """Gradients lie elsewhere on several ranks: with kernels of samebits and with torch's own the bits are equal."""
    expected = alone(switched, across)
    for world_size in (2, 3):
        assert ranks(world_size, switched, across)[0] == [expected] * world_size


def test_loader_workers_do_not_move_the_bits(ranks, alone):
    """Workers compute the shards of a rank: the digest is that without them."""
    expected = alone(of_all, ["Mlp"])
    assert ranks(2, with_workers)[0] == [expected["Mlp"]] * 2


def with_workers():
    return programs.train("Mlp", workers=2)


def counting(name):
    calls = []
    forward = programs.Mlp.backward

    def counted(self, *args):
        calls.append(len(args[1]))
        forward(self, *args)

    programs.Mlp.backward = counted
    from samebits.distributed import _shards as module

    made = []
    init = module.OrderedSum.__init__
    module.OrderedSum.__init__ = lambda self, *args: (made.append(self), init(self, *args))[1]
    programs.train(name, epochs=1)
    return len(calls), set(calls), made[0]._slices.sent_bytes


def test_each_rank_runs_its_own_shards_and_sends_what_the_design_says(ranks):
    """2 ranks, 6 shards: 3 forwards a step; a slice of each round and of the end goes to the other rank."""
    values, _ = ranks(2, counting, "Mlp")
    weights = 108 * 17 + 17 + 17 * 4 + 4
    steps, rounds = 4, 3
    piece = -(-weights // 2)
    assert values == [(steps * 3, {2}, 4 * steps * piece * (rounds + 1))] * 2


def rank_keyed_mask():
    samebits.set_random_seed(1)
    net = torch.nn.Linear(108, 4)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    rank = dist.get_rank() if dist.is_initialized() else 0
    with samebits.Run(None, net=net, optimizer=optimizer) as run:
        for _, shards in run.steps(programs.loader(), epochs=1, shards=6):
            for images, labels, _ in shards:
                mask = torch.rand(108, generator=torch.Generator().manual_seed(rank)) > 0.5
                F.cross_entropy(net(images.flatten(1) * mask), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    return digest.of_value(net.state_dict())


def test_control_a_mask_keyed_by_rank_differs(ranks, alone):
    """A draw that follows the rank shows at once: shards do not hide it."""
    values, _ = ranks(2, rank_keyed_mask)
    assert values[0] == values[1]
    assert values[0] != alone(rank_keyed_mask)
