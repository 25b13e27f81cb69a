"""`samebits verify --nproc-per-node N`: jobs of torchrun are compared rank by rank, and their ranks with one another."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from waiting import wait_until

pytestmark = pytest.mark.timeout(900)

HEAD = """
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import samebits

dist.init_process_group("gloo")
rank = dist.get_rank()
samebits.set_random_seed(1)
x = torch.randn(96, 8)
data = list(zip(x, x.sum(1, keepdim=True)))
loader = samebits.data.Pipeline.from_source(data).shuffle().batch(12, drop_remainder=True)
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
net.register_buffer("temperature", torch.ones(()))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
run = samebits.Run("run", model=model, optimizer=optimizer)
"""
PLAIN = (
    HEAD
    + """
with run:
    for step, (a, b) in run.steps(loader, epochs=3):
        loss = (model(a) - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step.ends_epoch and rank == 0:
            net.eval()
            with torch.no_grad():
                print((net(x) - x.sum(1, keepdim=True)).square().mean().item())
            net.train()
dist.destroy_process_group()
"""
)
ACCUMULATED = (
    HEAD
    + """
with run:
    for step, (a, b) in run.steps(loader, epochs=3):
        if step.batch_index % 4 < 3:
            with model.no_sync():
                (model(a) - b).square().mean().backward()
            continue
        (model(a) - b).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
dist.destroy_process_group()
"""
)
STEPPED = "        optimizer.step()\n"
IN_PLACE = "        net[0].weight.data {}\n"
KEYED_BUFFER = PLAIN.replace(
    "model = DistributedDataParallel(net)\n",
    "model = DistributedDataParallel(net, broadcast_buffers=False)\nnet.temperature += rank\n",
)
DRIFTING = PLAIN.replace(
    STEPPED,
    STEPPED + "        net.temperature += rank\n" + IN_PLACE.format("*= 1 - 1e-3 * net.temperature"),
)
UNSYNCHRONISED_DRAW = PLAIN.replace(
    STEPPED, STEPPED + IN_PLACE.format("+= 1e-3 * torch.randn_like(net[0].weight)")
)
SAME_DRAW = UNSYNCHRONISED_DRAW.replace(
    "torch.randn_like(net[0].weight)",
    "samebits.random.normal(samebits.random.fold_in(samebits.random.key(3), step.number), (16, 8))",
)
LOST_ON_ONE_RANK = PLAIN.replace('Run("run", model=model, optimizer=optimizer)', 'Run("run", model=model)')
UNSEEDED_RANK = PLAIN.replace(  # not in the input: BatchNorm takes a shift out again
    "(model(a) - b)", "(model(a) - b - rank * torch.rand(1, generator=noise))"
).replace("net = ", "noise = torch.Generator()\nnoise.seed()\nnet = ")
RAISING = PLAIN.replace(
    STEPPED, STEPPED + "        if rank == 1 and step.number == 3:\n            raise ValueError('shard-1')\n"
)
LEAVING = RAISING.replace("raise ValueError('shard-1')", "import os; os._exit(3)")
NO_RUN = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1)))
optimizer = torch.optim.SGD(model.parameters(), 0.05)
torch.manual_seed(dist.get_rank())
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        print(loss.item())
"""
NO_DDP = NO_RUN.replace("DistributedDataParallel(torch.nn.Sequential", "(torch.nn.Sequential")


def start(folder, source, ranks, *options):
    """`samebits verify` of a job, as a process."""
    (folder / "train.py").write_text(source)
    words = [
        "verify",
        "--no-find-op",
        "--nproc-per-node",
        str(ranks),
        "--seed",
        "7",
        "--json",
        "out.json",
        *options,
        "train.py",
    ]
    return subprocess.Popen(
        [sys.executable, "-m", "samebits", *words],
        cwd=folder,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def verify(folder, source, ranks, *options):
    """(exit status, output, JSON or None) of `samebits verify` of a job."""
    job = start(folder, source, ranks, *options)
    output, _ = job.communicate(timeout=850)
    out = folder / "out.json"
    return job.returncode, output, json.loads(out.read_text()) if out.exists() else None


def row(report, check):
    return next(row for row in report["rows"] if row["check"].startswith(check))


def members(folder):
    """The processes whose TMPDIR is below `folder`: torchrun's ranks, and all that they start."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"TMPDIR={folder}/".encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
        except OSError:  # it has ended
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "source, ranks, options",
    [
        (PLAIN, 2, ()),
        (ACCUMULATED, 3, ("--checks", "replicas,kill")),
        pytest.param(PLAIN, 3, ("--checks", "replicas,kill"), marks=pytest.mark.soak),
        pytest.param(ACCUMULATED, 2, ("--checks", "replicas,kill"), marks=pytest.mark.soak),
    ],
)
def test_ddp_is_verified(tmp_path, source, ranks, options):
    """DDP, with and without no_sync, on 2 and 3 ranks: every row is equal, kills of one rank and of all among them."""
    status, output, report = verify(tmp_path, source, ranks, *options)
    assert status == 0 and report["verdict"].startswith("VERIFIED"), output
    assert {"run again", "replicas equal"} <= {*report["proven"]}
    assert len([name for name in report["proven"] if name.startswith("killed")]) == 3
    assert all(found["steps_compared"] == 24 for found in report["rows"])
    assert "SIGKILL of rank " in row(report, "killed mid-epoch")["varied"]
    assert "SIGKILL of all ranks" in row(report, "killed at")["varied"]
    # statistics of a rank's own batches are no alarm
    assert "running_mean" in row(report, "replicas")["note"]
    assert sorted(os.listdir(tmp_path)) == ["out.json", "train.py"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "source, component, path",
    [
        (KEYED_BUFFER, "buffers", "module.temperature"),
        pytest.param(DRIFTING, "buffers", "module.temperature", marks=pytest.mark.soak),
        (UNSYNCHRONISED_DRAW, "model", "module.0.weight"),
    ],
)
def test_unequal_replicas_are_named(tmp_path, source, component, path):
    """Exit status 1: the rank and the component, at the first step, although the program repeats its bits."""
    status, output, report = verify(tmp_path, source, 2, "--checks", "replicas")
    assert status == 1, output
    assert row(report, "run again")["equal"] is True
    found = row(report, "replicas equal")["difference"]
    assert (found["rank"], found["step"], found["component"], found["paths"]) == (1, 0, component, [path])
    assert f"rank 1: step 0 (epoch 0, batch 0): {component} ({path}) differ" in report["verdict"]


@pytest.mark.slow
def test_a_draw_that_all_ranks_share_is_no_difference(tmp_path):
    """Negative control: noise from one key on all ranks goes into the parameters, and the replicas are equal."""
    status, output, report = verify(tmp_path, SAME_DRAW, 2, "--checks", "replicas")
    assert status == 0 and row(report, "replicas equal")["equal"] is True, output


@pytest.mark.slow
def test_state_that_a_kill_loses_is_named_with_its_rank(tmp_path):
    """An optimizer outside of the commit: the row of the killed rank differs, the plain repeat does not; exit status 1."""
    status, output, report = verify(tmp_path, LOST_ON_ONE_RANK, 2, "--checks", "kill-mid-epoch")
    assert status == 1, output
    assert row(report, "run again")["equal"] is True
    found = row(report, "killed mid-epoch")["difference"]
    assert (found["rank"], found["component"]) == (0, "optimizer")


@pytest.mark.slow
def test_the_rank_that_draws_without_a_seed_is_named(tmp_path):
    """Its loss is the cause; the parameters of rank 0, which differ in the same step, are not."""
    status, output, report = verify(tmp_path, UNSEEDED_RANK, 2, "--checks", "run-again")
    assert status == 1, output
    found = row(report, "run again")["difference"]
    assert (found["rank"], found["step"], found["component"]) == (1, 0, "loss")


@pytest.mark.slow
@pytest.mark.parametrize(
    "source, text",
    [(RAISING, "rank 1 raised: ValueError: shard-1"), (LEAVING, "rank 1 ended with exit code 3")],
)
def test_a_job_that_fails_names_the_rank_that_failed_first(tmp_path, source, text):
    """Exit status 2 and the rank; the other one only lost its connection."""
    status, output, report = verify(tmp_path, source, 2, "--checks", "run-again")
    assert (status, report) == (2, None) and f"train.py: {text}" in output
    Path(output.rpartition("its output: ")[2].strip().rstrip(")")).unlink()


@pytest.mark.slow
def test_a_job_without_a_run_is_compared_and_not_killed(tmp_path):
    """A plain DDP script: repeat and replicas are equal, kills do not apply, and the verdict says so."""
    status, output, report = verify(tmp_path, NO_RUN, 2, "--checks", "replicas,kill")
    assert status == 0 and report["verdict"].startswith("REPRODUCED"), output
    assert report["proven"] == ["run again", "replicas equal"]
    assert "the script does not use samebits.Run" in row(report, "killed mid-epoch")["note"]


@pytest.mark.slow
def test_ranks_without_ddp_are_measured_only(tmp_path):
    """Nobody promises that ranks without DistributedDataParallel are equal: the row differs, and does not count."""
    status, output, report = verify(tmp_path, NO_DDP, 2, "--checks", "replicas")
    found = row(report, "replicas equal")
    assert (status, found["promised"], found["equal"]) == (0, False, False), output
    assert "no DistributedDataParallel was called" in found["note"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_is_left_when_verify_is_ended(tmp_path, monkeypatch, number):
    """torchrun and its ranks, which have sessions of their own, are gone with verify, and so is the scratch folder."""
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:
        monkeypatch.setenv("TMPDIR", temporary)
        job = start(tmp_path, PLAIN + "import time; time.sleep(300)\n", 2)
        assert wait_until(lambda: len(members(temporary)) >= 3)  # torchrun and two ranks
        job.send_signal(number)
        job.communicate(timeout=60)
        assert job.returncode == (-number if number == signal.SIGKILL else 128 + number)
        assert wait_until(lambda: not members(temporary) and not os.listdir(temporary))


@pytest.mark.slow
def test_a_record_under_torchrun_has_a_folder_for_each_rank(tmp_path):
    """`torchrun -m samebits run --record`: two jobs are equal by `diff`, and one of another seed differs on a named rank."""
    (tmp_path / "train.py").write_text(
        NO_RUN.replace("torch.manual_seed(0)", "").replace("torch.manual_seed(dist", "torch.rand(dist")
    )
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "samebits",
    ]
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        command = [*torchrun, "run", "--record", name, "--seed", str(seed), "train.py"]
        subprocess.run(
            command, cwd=tmp_path, check=True, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}, timeout=280
        )
    assert sorted(path.name for path in tmp_path.glob("a/*/*")) == ["record.jsonl"] * 2

    def diff(one, other):
        command = [sys.executable, "-m", "samebits", "diff", one, other]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
        return done.returncode, done.stdout + done.stderr

    assert diff("a", "b") == (0, "equal: 6 steps compared, and the model at the end\n")
    status, sentence = diff("a", "c")
    assert status == 1 and sentence.startswith("rank 0: ")
    status, sentence = diff("a", "b/rank1")
    assert status == 2 and "a job of 2 ranks" in sentence
