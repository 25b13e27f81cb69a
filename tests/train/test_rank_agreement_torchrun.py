"""Real `torchrun` jobs: a killed rank, a job that is told to end, and what their restarts end with."""

import os
import runpy
import signal
import subprocess
import sys
import time

import pytest

from samebits.checkpoint._store import CommitStore

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import samebits
from samebits import _context as context, _digest as digest

folder, kill, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
torch.set_num_threads(1)
if not dist.is_initialized():
    dist.init_process_group("gloo")
samebits.set_random_seed(5)
if kill:
    context.process.overrides = context.CheckOverrides(commit_steps=(kill - 5,))
net = nn.Sequential(nn.Linear(40, 173), nn.Tanh(), nn.Dropout(0.2), nn.Linear(173, 173), nn.Tanh(), nn.Linear(173, 3))
model = DDP(net)
opt = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
loader = samebits.data.Pipeline.from_source(range(240)).shuffle().map(lambda i: torch.randn(40) + i / 240).batch(12)
with samebits.Run(f"{folder}/run", model=model, opt=opt, ignore=["pause"]) as run:
    for step, x in run.steps(loader, epochs=3):
        loss = model(x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        time.sleep(pause if step.number < 10 else 10 * pause)  # the signal comes long before the end
        open(f"{folder}/step{dist.get_rank()}", "w").write(f"{step.number}")
        if kill == step.number > 0 and dist.get_rank() == 1 and not run.resumed:
            os.kill(os.getpid(), signal.SIGKILL)
bits = digest.of_value([net.state_dict(), opt.state_dict()])
with open(f"{folder}/bits{dist.get_rank()}", "w") as file:
    file.write(f"{run.resumed} {bits}")
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def torchrun(script, folder, world_size, *arguments, restarts=0):
    folder.mkdir(exist_ok=True)
    # Without this variable torch 2.13 gives the restarted ranks the addresses of the dead ones.
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}",
         f"--max-restarts={restarts}", f"--log-dir={folder}/log", script, folder, *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def ended(folder, world_size):
    """Whether each rank resumed, and its bits."""
    return [(folder / f"bits{rank}").read_text().split() for rank in range(world_size)]


def expected(ranks, script, folder, world_size):
    """The bits of a job that nobody interrupted."""

    def work():
        sys.argv = ["train.py", str(folder), "0", "0"]
        runpy.run_path(str(script))

    folder.mkdir()
    ranks(world_size, work)
    return [bits for _, bits in ended(folder, world_size)]


@pytest.mark.slow
def test_torchrun_restarts_the_job_when_a_rank_is_killed(ranks, script, tmp_path):
    """SIGKILL of rank 1 of 3: torchrun restarts all, they resume from the last commit, and end with equal bits."""
    job = torchrun(script, tmp_path / "job", 3, 30, 0, restarts=1)
    output, _ = job.communicate(timeout=240)
    assert job.returncode == 0 and "exitcode: -9" in output, output[-4000:]
    whole = expected(ranks, script, tmp_path / "whole", 3)
    assert ended(tmp_path / "job", 3) == [["True", bits] for bits in whole]


@pytest.mark.slow
def test_torchrun_passes_a_signal_on(ranks, script, tmp_path):
    """SIGTERM to torchrun of 4 ranks: one commit for all; the same command again goes on from it, and ends with equal bits."""
    folder = tmp_path / "job"
    job = torchrun(script, folder, 4, 0, 0.05)
    deadline = time.monotonic() + 200
    while not (folder / "step0").exists() and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    output, _ = job.communicate(timeout=200)
    assert job.returncode != 0 and "committed at step" in output, output[-4000:]
    assert 0 < CommitStore(folder / "run").newest()[0].step < 60
    again = torchrun(script, folder, 4, 0, 0)
    output, _ = again.communicate(timeout=240)
    assert again.returncode == 0, output[-4000:]
    whole = expected(ranks, script, tmp_path / "whole", 4)
    assert ended(folder, 4) == [["True", bits] for bits in whole]
