"""A run of several real processes on gloo: killed in any way and started again, it ends with the bits of an uninterrupted one."""

import os
import random
import resource
import signal
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP

import samebits
from at_step import AtStep, ends, sends
from samebits import _digest as digest
from samebits import errors
from samebits._context import CheckOverrides, Observer, process
from samebits.checkpoint._store import CommitStore
from samebits.train import _rank_agreement as joined


def on_ranks(event, step, *ranks, number=signal.SIGKILL):
    """Sends a signal to this process at one event of one step, on some ranks."""
    send = sends(number)
    return AtStep(event, step, lambda: dist.get_rank() in ranks and send())


class Commits(Observer):
    """The steps that this rank was told are committed."""

    def __init__(self):
        self.steps = []

    def committed(self, run, step):
        self.steps.append(step.step)


def element(index):
    return torch.randn(40) + index / 48 + np.random.rand() + random.random()


@contextmanager
def buckets(*, fixed):
    """With DDP's buckets as torch leaves them, unless `fixed`."""
    kept = joined.fix_buckets
    joined.fix_buckets = kept if fixed else lambda objects: None
    try:
        yield
    finally:
        joined.fix_buckets = kept


def train(run_dir, *, fixed=True, **options):
    with buckets(fixed=fixed):
        return loop(run_dir, **options)


def loop(
    run_dir,
    *,
    killer=None,
    commits=None,
    given="ddp",
    accumulate=1,
    epochs=3,
    save="3%",
    by_epoch=False,
    **ddp_options,
):
    """An ordinary loop: BatchNorm, Dropout (torch's and ours), momentum, a scheduler, values of each rank's own.

    `by_epoch`: a loop of `run.epochs`, with a draw after the steps of each epoch.
    """
    samebits.set_random_seed(5)
    process.overrides = CheckOverrides(commit_steps=commits)
    seen = Commits()
    process.observers[:] = [seen] if killer is None else [seen, killer]
    net = nn.Sequential(
        nn.Linear(40, 173), nn.BatchNorm1d(173), samebits.nn.Dropout(0.2), nn.Tanh(),
        nn.Linear(173, 173), nn.Dropout(0.2), nn.Tanh(), nn.Linear(173, 3),
    )  # fmt: skip
    ddp = DDP(net, **ddp_options)
    opt = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 5)
    loader = samebits.data.Pipeline.from_source(range(48)).shuffle().map(element).batch(12)
    objects = {"model": ddp if given == "ddp" else net, "opt": opt, "scheduler": scheduler}
    with samebits.Run(
        run_dir, save=save, ignore=["seen"], **objects
    ) as run:  # a list of this process's commits

        def train_on(steps):
            for step, x in steps:
                sums = (step.number + 1) % accumulate == 0
                with nullcontext() if sums else ddp.no_sync():
                    loss = ddp(x).square().mean()
                    loss.backward()
                run.log(loss=loss)
                if sums:
                    opt.step()
                    opt.zero_grad()
                scheduler.step()
                run.state.draws = [*run.state.get("draws", []), float(torch.rand(1))]

        if by_epoch:
            for epoch in run.epochs(epochs):
                train_on(epoch.steps(loader))
                run.state.draws = [*run.state.draws, float(torch.rand(1)) + epoch]
        else:
            train_on(run.steps(loader, epochs=epochs))
        after = torch.rand(1).item(), np.random.rand(), random.random()
    weights = [p.detach() for p in net.parameters()]
    return {
        "bits": digest.of_value([net.state_dict(), opt.state_dict(), scheduler.state_dict()]),
        "weights": digest.of_value(weights), "draws": run.state.draws, "after": after,
        "masks": digest.of_value(net[2](torch.ones(64))), "commits": seen.steps, "resumed": run.resumed,
    }  # fmt: skip


def bits(results):
    """What must not depend on interruptions."""
    return [{name: one[name] for name in ("bits", "weights", "draws", "after")} for one in results]


_uninterrupted = {}


def uninterrupted(ranks, world_size, **options):
    key = world_size, *sorted(options.items())
    if key not in _uninterrupted:
        _uninterrupted[key] = ranks(world_size, lambda: train(None, **options))[0]
    return _uninterrupted[key]


@pytest.mark.first_case_quick
@pytest.mark.parametrize(
    ("world_size", "event", "step", "killed", "resumed"),
    [
        (3, "step_begins", 7, (1,), True),  # the others wait for it in the backward
        # rank 0 has all parts, and no manifest yet: the commit before it counts
        (3, "commit_writing", 6, (0,), True),
        (4, "boundary", 6, (3,), True),  # the others are in the commit, and lack this rank's part
        (4, "step_begins", 8, (0, 1, 2, 3), True),
        (4, "step_begins", 0, (2,), False),
    ],
)
def test_killed_ranks_and_resumed(ranks, tmp_path, world_size, event, step, killed, resumed):
    """SIGKILL of one rank, of the one that writes, or of all: the restarted job ends with equal bits on every rank."""
    expected = uninterrupted(ranks, world_size)
    commits = (4, 6)
    killer = on_ranks(event, step, *killed)
    _, codes = ranks(world_size, lambda: train(tmp_path / "r", killer=killer, commits=commits), code=None)
    assert all(codes[rank] == -9 for rank in killed) and 0 not in codes
    results, _ = ranks(world_size, train, tmp_path / "r")
    assert [one["resumed"] for one in results] == [resumed] * world_size
    assert bits(results) == bits(expected)


@pytest.mark.first_case_quick
@pytest.mark.parametrize("step", [3, 4, 6])
def test_epochs_of_several_ranks_are_killed_and_resumed(ranks, tmp_path, step):
    """A loop of run.epochs, a rank of which is killed at an epoch's end, its begin, or between: equal bits on every rank."""
    expected = uninterrupted(ranks, 3, by_epoch=True)
    assert bits(expected) != bits(uninterrupted(ranks, 3))  # (control) the draw at each epoch's end counts
    killer = on_ranks("step_begins", step, 1)
    run = partial(train, tmp_path / "r", by_epoch=True)
    _, codes = ranks(3, lambda: run(killer=killer, commits=(step - 1, step)), code=None)
    assert codes[1] == -9 and 0 not in codes
    results, _ = ranks(3, run)
    assert [one["resumed"] for one in results] == [True] * 3
    assert bits(results) == bits(expected)


KINDS = {
    "bare module": {"given": "net"},
    "static graph": {"static_graph": True},
    "gradients inside the buckets": {"gradient_as_bucket_view": True},
    "gradients that differ": {"accumulate": 4},  # under no_sync, cut in the middle
    "buckets left alone": {"fixed": False},
}


def every_kind(folder):
    found = {}
    for number, (name, options) in enumerate(KINDS.items()):
        whole = train(None, **options)
        with pytest.raises(InterruptedError):
            train(folder / str(number), killer=AtStep("step_begins", 6, ends), commits=(6,), **options)
        found[name] = whole, train(folder / str(number), **options)
    return found


@pytest.fixture(scope="module")
def kinds():
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if name != "buckets left alone"])
def test_every_kind_of_ddp(ranks, tmp_path, kinds, name):
    """Cut and resumed, equal bits: only the bare module given to the run, a static graph, gradients that are views of the
    buckets, gradients that each rank has for itself in the middle of an accumulation."""
    kinds = kinds or kinds.update(results=ranks(3, every_kind, tmp_path)[0]) or kinds
    wholes, resumed = zip(*(one[name] for one in kinds["results"]), strict=True)
    assert all(one["resumed"] for one in resumed) and bits(resumed) == bits(wholes)


@pytest.mark.slow
def test_buckets_that_are_rebuilt_after_a_resume_give_other_bits(ranks, tmp_path, kinds):
    """Negative control: with DDP's buckets left alone, three ranks resume to other weights."""
    kinds = kinds or kinds.update(results=ranks(3, every_kind, tmp_path)[0]) or kinds
    whole, resumed = kinds["results"][0]["buckets left alone"]
    assert (
        resumed["resumed"] and resumed["draws"] == whole["draws"] and resumed["weights"] != whole["weights"]
    )


def test_commits_that_nobody_waits_for(ranks, tmp_path):
    """With save=2 rank 0's writer process commits every second step of all ranks; rank 0 killed, the rest resumes, equal."""
    expected = uninterrupted(ranks, 3)
    _, codes = ranks(
        3, lambda: train(tmp_path / "r", killer=on_ranks("step_begins", 9, 0), save=2), code=None
    )
    assert codes[0] == -9
    results, _ = ranks(3, lambda: train(tmp_path / "r", save=2))
    assert bits(results) == bits(expected) and all(one["resumed"] for one in results)
    again = ranks(3, lambda: train(tmp_path / "s", save=2))[0]
    assert bits(again) == bits(expected) and {*again[0]["commits"]} <= {2, 4, 6, 8, 10, 12}


@pytest.mark.first_case_quick
@pytest.mark.parametrize("save", [2, "3%"])
def test_a_url_needs_no_folder_that_ranks_or_machines_share(ranks, tmp_path, save):
    """Each rank on a machine of its own, all killed, and three other machines go on from the URL: equal bits; only rank 0's made a folder."""
    expected, url = uninterrupted(ranks, 3), f"file://{tmp_path}/r"

    def on_machines(name, killer=None):
        cache = tmp_path / f"{name}{dist.get_rank()}"
        os.environ["SAMEBITS_CACHE_DIR"] = str(cache)
        commits = range(1, 13) if save == "3%" else None
        return {**train(url, killer=killer, commits=commits, save=save), "folder": (cache / "runs").exists()}

    _, codes = ranks(3, lambda: on_machines("a", on_ranks("step_begins", 11, 0, 1, 2)), code=None)
    assert codes == [-9] * 3
    results, _ = ranks(3, lambda: on_machines("b"))
    assert bits(results) == bits(expected) and (save == 2 or all(one["resumed"] for one in results))
    assert [one["folder"] for one in results] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("by_epoch", [False, True])
def test_a_signal_to_one_rank_ends_all_at_the_same_step(ranks, tmp_path, capfd, by_epoch):
    """SIGTERM to one rank: all commit the same boundary and exit with 75; started again, equal bits."""
    expected = uninterrupted(ranks, 3, epochs=30, by_epoch=by_epoch)
    killer = on_ranks("step_begins", 7, 2, number=signal.SIGTERM)
    run = partial(train, tmp_path / "r", epochs=30, by_epoch=by_epoch)
    ranks(3, lambda: run(killer=killer, commits=()), code=75)
    assert capfd.readouterr().err.count("committed at step") == 1  # rank 0 speaks for all
    manifest, _ = CommitStore(tmp_path / "r").newest()
    assert 8 <= manifest.step < 120 and not manifest.finished
    results, _ = ranks(3, run)
    assert results[0]["resumed"] and bits(results) == bits(expected)


def test_ranks_draw_differently_in_a_step_and_alike_behind_the_loop(ranks):
    """In the body every rank draws numbers of its own; weights, and what is drawn behind the loop, are equal on all."""
    results = uninterrupted(ranks, 4)
    drawn = [draw for one in results for draw in one["draws"]]
    assert len(set(drawn)) == len(drawn) == 4 * 12
    assert len({one["after"] for one in results}) == len({one["weights"] for one in results}) == 1


def test_what_is_equal_on_all_ranks_is_stored_once(ranks, tmp_path):
    """A commit of four ranks holds weights and optimizer once, and of ranks 1 to 3 their running statistics and draws."""
    results, _ = ranks(4, train, tmp_path / "r")
    assert all(one["commits"][-1] == 12 for one in results)
    _, saved = CommitStore(tmp_path / "r").newest()
    parts = saved["ranks"]
    assert len(parts) == 3
    for part in parts:
        assert {name.rpartition(".")[2] for name in part["tensors"]} == {"running_mean", "running_var"}
        assert len(part["nodes"]) < 2000


def bad_programs(folder):
    """What each wrong program raises on this rank."""
    rank = dist.get_rank()
    samebits.set_random_seed(5)
    loader = [torch.zeros(1)] * 6

    def steps(run_dir=None, loader=loader, stop=None, name="train", **objects):
        with samebits.Run(run_dir, save="explicit", **objects) as run:
            for step, _ in run.steps(loader, epochs=2, name=name):
                if step.number == stop:
                    run.stop()

    class Unsized:
        def __iter__(self):
            return iter([torch.zeros(1)] * (5 if rank == 2 else 6))

    def seeds():
        samebits.set_random_seed(5 + rank)
        try:
            steps()
        finally:
            samebits.set_random_seed(5)

    def full_disk():
        if rank == 0:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))
        try:
            steps(folder / "full", model=nn.Linear(100, 100))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def foreign():
        if rank == 0:
            (folder / "foreign").mkdir()
            (folder / "foreign" / "novel.txt").write_text("Call me Ishmael.")
        steps(folder / "foreign")

    def sharded():
        model = nn.Linear(6, 6)
        mesh = init_device_mesh("cpu", (3,))
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(0)]))
        steps(model=model)

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    programs = {
        "seeds": seeds,
        "folders": lambda: steps(folder / f"of{rank}"),
        "objects": lambda: steps(model=nn.Linear(2, 2) if rank else nn.Conv2d(1, 1, 1)),
        "loops": lambda: steps(name="train" if rank < 2 else "training"),
        "batches": lambda: steps(loader=loader[: 5 + (rank != 1)]),
        "unsized": lambda: steps(loader=Unsized()),
        "stop": lambda: steps(stop=3 if rank == 1 else None),
        "full disk": full_disk,
        "foreign": foreign,
        "sharded": sharded,
    }
    raised = {}
    for name, program in programs.items():
        try:
            program()
        except errors.SamebitsError as error:
            raised[name] = type(error).__name__, str(error)
    return raised


def test_ranks_that_differ_are_told(ranks, tmp_path):
    """Other seeds, folders, objects, loops or batches, an end that comes earlier, a full disk: each raised on all ranks."""
    results, _ = ranks(3, bad_programs, tmp_path)
    wanted = {
        "seeds": ("RunMismatchError", "seed is 5 on rank 0 and 6 on rank 1", "set_random_seed"),
        "folders": ("RunMismatchError", "of0", "on rank 1", "Give all ranks the same directory"),
        "objects": ("RunMismatchError", "Conv2d", "Linear", "the same objects"),
        "loops": ("RunMismatchError", '"training" on rank 2'),
        "batches": ("RunMismatchError", "batches is 6 on rank 0 and 5 on rank 1", "Pipeline"),
        "unsized": ("RanksError", "rank 2 is at the end of loop 'train' at step 10", "as many batches"),
        "stop": ("RanksError", "rank 1 is at the end of loop 'train' at step 4", "run.stop()"),
        "full disk": ("CommitError", "ulimit -f"),
        "foreign": ("RunDirectoryError", "novel.txt"),
        "sharded": ("UnimplementedError", "run.steps(loader, shards=S)"),
    }  # fmt: skip
    for raised in results:
        assert raised.keys() == wanted.keys()
        for name, (kind, *texts) in wanted.items():
            assert raised[name][0] == kind
            assert all(text in raised[name][1] for text in texts), raised[name]


def test_another_number_of_processes_is_refused(ranks, forked, tmp_path):
    """A commit of three ranks is resumed neither by two nor by one, and one of a single process not by three; the message says both numbers."""

    def simple(run_dir):
        samebits.set_random_seed(1)
        try:
            with samebits.Run(run_dir, model=nn.Linear(2, 2)) as run:
                list(run.steps([1, 2]))
        except errors.RunMismatchError as error:
            return str(error)

    assert ranks(3, simple, tmp_path / "three")[0] == [None] * 3
    for message in [*ranks(2, simple, tmp_path / "three")[0], forked(simple, tmp_path / "three").value]:
        assert "made by 3 processes" in message and "nproc-per-node" in message
    assert forked(simple, tmp_path / "one").value is None
    assert all("made by one process" in message for message in ranks(3, simple, tmp_path / "one")[0])


def everything(run_dir):
    """A loader that nobody told of the ranks."""
    samebits.set_random_seed(1)
    loader = torch.utils.data.DataLoader(torch.arange(12.0), 4, shuffle=True)
    with pytest.warns(UserWarning, match="gives every rank all of the data"), samebits.Run(run_dir) as run:
        return [x.tolist() for _, x in run.steps(loader)]


def test_ranks_that_read_the_same_are_warned(ranks):
    """A shuffling DataLoader without a DistributedSampler: every rank gets the same batches, and a warning says so."""
    results, _ = ranks(3, everything, None)
    assert results[0] == results[1] == results[2]


def test_ranks_of_a_distributed_sampler_draw_differently():
    """The n-th elements of two ranks' shares get random numbers of their own; of one rank alone, those of always."""

    class Noise(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):
            return float(torch.rand(1))

    def noise(count, rank):
        sampler = torch.utils.data.DistributedSampler(Noise(), count, rank)
        return torch.cat(list(samebits.data.DataLoader(Noise(), 2, sampler=sampler, seed=3))).tolist()

    assert not set(noise(2, 0)) & set(noise(2, 1))
    plain = samebits.data.DataLoader(Noise(), 2, sampler=list(range(8)), seed=3)
    assert noise(1, 0) == torch.cat(list(plain)).tolist()


def leaves_early():
    """Rank 0 raises in the body, and its program goes on; what the others get to hear."""
    try:
        with samebits.Run(None) as run:
            for step, _ in run.steps([0] * 500):
                if step.number == 3 and run.rank == 0:
                    raise InterruptedError
    except (InterruptedError, errors.RanksError) as error:
        return type(error).__name__


def test_a_rank_that_raises_leaves_nobody_waiting(ranks):
    """The others are told at their next asking, although the process of the rank that raised lives on."""
    results, _ = ranks(3, leaves_early)
    assert results == ["InterruptedError", "RanksError", "RanksError"]


def refused_in_the_background(run_dir):
    """A disk takes no more of what the writer process of rank 0 writes."""
    samebits.set_random_seed(1)
    model = DDP(nn.Linear(300, 300))

    def fills_up():
        if dist.get_rank() == 0:
            (writer,) = map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())
            while not any(name[0] == "0" and int(name[:12]) > 5 for name in os.listdir(run_dir / "commits")):
                time.sleep(0.002)
            resource.prlimit(writer, resource.RLIMIT_FSIZE, (500, 500))

    with samebits.Run(run_dir, model=model, save=1) as run:
        for step, x in run.steps([torch.ones(2, 300)] * 400):
            time.sleep(0.002)
            if step.number == 30:
                fills_up()
            model(x).sum().backward()


def test_a_commit_that_fails_beside_the_training_ends_all_ranks_alike(ranks, tmp_path):
    """The writer process is refused by the disk: both ranks raise the same CommitError, with the cure, at the same step."""

    def message():
        try:
            refused_in_the_background(tmp_path / "r")
        except errors.SamebitsError as error:
            return type(error).__name__, str(error)

    results, _ = ranks(2, message)
    assert [name for name, _ in results] == ["CommitError"] * 2
    assert results[1][1] == f"rank 0: {results[0][1]}" and "ulimit -f" in results[0][1]
    assert CommitStore(tmp_path / "r").newest()[0].step > 5
