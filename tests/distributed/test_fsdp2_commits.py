"""A run under FSDP2 goes on at any number of processes, sharded, replicated or alone, from one commit to the next."""

import os
import signal

import pytest
import torch

import fsdp2_programs as programs
import samebits
import shard_programs
from samebits.checkpoint import list_commits, load_commit
from samebits.errors import InvalidArgumentError, SamebitsError

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ["Convnet", "Transformer", "Gan"]


def train(run_dir, name, shards_model, epochs, kill_at=None, rank=0):
    """Goes on with a run, at most up to the step where `rank` is killed; returns the digest of its whole state."""
    samebits.set_random_seed(1)
    program = programs.PROGRAMS[name](shards_model)
    with samebits.Run(run_dir, save=2, **program.objects()) as run:
        for step, own in run.steps(shard_programs.loader(), epochs=epochs, shards=shard_programs.SHARDS):
            if step.number == kill_at and run.rank == rank:
                os.kill(os.getpid(), signal.SIGKILL)
            for number in range(program.passes):
                values = []
                for batch in own:
                    program.backward(number, *batch, 1 / step.shards)
                    values.append(float(batch[1].sum()) / 7)
                if (step.number + 1) % program.accumulate == 0:
                    program.update(number)
            if name == "Transformer":  # it leaves the root's weights whole
                with torch.no_grad():
                    program.net(torch.zeros(1, 3, dtype=torch.long), True)
            run.state.total = run.state.get("total", 0.0) + own.sum(values)
        states = {one: thing.state_dict() for one, thing in program.objects().items()}
        return programs.digest.of_value([programs.whole(states), run.state.total])


def train_all(folder, shards_model, epochs, names=NAMES):
    return [train(folder / name, name, shards_model, epochs) for name in names]


@pytest.fixture
def expected(forked, tmp_path):
    """The digests of programs after so many epochs in one process, replicated."""

    def train_alone(epochs, names=NAMES):
        ended = forked(train_all, tmp_path / "alone", False, epochs, names)
        assert ended.code == 0
        return ended.value

    return train_alone


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([2, -1, 3], id="quick"),
        pytest.param([3, 2, -2, -1, 4, 1, 2], marks=pytest.mark.slow, id="all"),
    ],
)
def test_any_layout_goes_on_from_any_other(sizes, ranks, tmp_path, expected):
    """FSDP2, replicas (below: negative) and one process go on from one another's commits; the bits are those of one process."""
    for epochs, size in enumerate(sizes, 1):
        values, _ = ranks(abs(size), train_all, tmp_path / "run", size > 0, epochs)
        parts = {one.name for one in tmp_path.glob("run/Convnet/commits/0*/*")}
        assert size < 2 or f"part-{size - 1:05d}.safetensors" in parts
    assert values == [expected(len(sizes))] * abs(sizes[-1])
    assert load_commit(tmp_path / "run" / "Convnet")["objects"]["net"].keys()


@pytest.mark.slow
def test_kills_that_change_size_and_layout_leave_the_bits_alone(ranks, tmp_path, expected):
    """Killed on one rank in the middle of a step, six times, and started in another layout: the digest of one process."""
    where = tmp_path / "Transformer"
    for kill_at, size, rank in ((3, 3, 2), (7, 2, 0), (10, -2, 1), (13, -1, 0), (17, 4, 1), (20, 1, 0)):
        _, codes = ranks(abs(size), train, where, "Transformer", size > 0, 6, kill_at, rank, code=None)
        assert codes[rank] == -signal.SIGKILL
    values, _ = ranks(2, train, where, "Transformer", True, 6)
    assert values == expected(6, ["Transformer"]) * 2


@pytest.mark.slow
def test_a_run_at_a_url_goes_on_at_another_size_on_another_machine(ranks, tmp_path, monkeypatch, expected):
    """Killed at a URL in 2 ranks, then in 3, each time on a machine that has nothing of it: the digest of one process. A part that is missing there costs a commit."""
    where, fresh = f"file://{tmp_path}/url", iter("abcd")

    def train_on(size, *args, code=0):
        monkeypatch.setenv("SAMEBITS_CACHE_DIR", str(tmp_path / "machines" / next(fresh)))
        return ranks(size, train, where, "Transformer", True, 4, *args, code=code)

    _, codes = train_on(2, 5, 1, code=None)
    assert codes[1] == -signal.SIGKILL
    _, codes = train_on(3, 11, 0, code=None)
    assert codes[0] == -signal.SIGKILL
    steps = [commit.step for commit in list_commits(where)]
    (newest,) = (tmp_path / "url" / "commits").glob(f"{steps[0]:012d}-*")
    (newest / "part-00002.safetensors").unlink()
    statuses = [commit.status for commit in list_commits(where, verify=True)]
    assert statuses == ["damaged", "valid"] and steps[1] > 5
    values, _ = train_on(1)
    assert values == expected(4, ["Transformer"])


def raised_by(run_dir, shards_model, **options):
    """The error of a run over two batches, if any."""
    program = programs.Mlp(shards_model)
    try:
        with samebits.Run(run_dir, **program.objects()) as run:
            for _ in run.steps([1, 2], **options):
                pass
    except SamebitsError as error:
        return f"{type(error).__name__}: {error}"
    return None


def added_late(run_dir):
    with samebits.Run(run_dir) as run, pytest.raises(InvalidArgumentError) as raised:
        run.add("net", programs.Mlp(True).net)
    return str(raised.value)


def refused(run_dir):
    late = added_late(run_dir.with_name("late"))
    return [late, raised_by(None, True), raised_by(run_dir, False), raised_by(run_dir, True, shards=2)]


def test_a_sharded_model_needs_shards(ranks, tmp_path):
    """A loop without shards, and the commit of one: refused on all ranks, with what to type; replicas may do without."""
    for late, without, replicas, commit_without in ranks(2, refused, tmp_path / "run")[0]:
        assert "Run.add('net')" in late and "samebits.Run(run_dir, net=...)" in late
        assert without.startswith("UnimplementedError") and "run.steps(loader, shards=S)" in without
        assert replicas is None
        assert commit_without.startswith("RunMismatchError") and "was made without shards" in commit_without
