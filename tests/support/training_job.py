"""Trainings in processes of their own: `python training_job.py JOB` trains by the JSON of a `TrainingJob`, and prints digests."""

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samebits import _digest as digest
from samebits.audit._child.launch import die_with_parent
from samebits.data import DataLoader
from samebits.determinism import enable_op_determinism
from samebits.random import set_random_seed
from samebits.train import Run

RESULT_PREFIX = "samebits-results "
EPOCH = 10
"""Batches of an epoch."""
_BLOCK = 5
"""Steps that are timed as one."""


@dataclass(frozen=True)
class TrainingJob:
    """The training of one process."""

    task: str = "transformer"
    """"transformer" or "convnet"."""
    device: str = "cuda"
    dtype: str = "float32"
    """The dtype, without TensorFloat-32; "bfloat16" by autocast."""
    steps: int = 20
    timed: int = 0
    """Steps that follow and are timed."""
    seed: int = 1
    switch: bool = True
    small: bool = False
    dropout: float = 0.1
    compiled: str = ""
    """The mode of torch.compile; empty: not compiled."""
    run_dir: str = ""
    """With it, the loop is that of a `samebits.Run` that commits at each step."""
    kill_at: int = -1
    """The process kills itself after the optimizer of this step."""
    backend: str = ""
    """With it, the model is a DistributedDataParallel."""


class JobError(Exception):
    """A training's process failed, or took too long."""


def run_in_processes(job, limit_s, environment=None, ranks=1):
    """The results of the job's processes, one for each rank; none where they are killed."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    common = {**os.environ, **(environment or {}), "WORLD_SIZE": str(ranks), "MASTER_PORT": port}
    common |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    command = [sys.executable, __file__, json.dumps(asdict(job))]
    processes = [
        subprocess.Popen(
            command,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        outputs = [process.communicate(timeout=limit_s)[0] for process in processes]
    except subprocess.TimeoutExpired:
        raise JobError(f"{job} took more than {limit_s:g} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes, last = [p.returncode for p in processes], [" / ".join(o.splitlines()[-2:]) for o in outputs]
    if job.kill_at >= 0:
        if codes != [-signal.SIGKILL] * ranks:
            raise JobError(f"{job} was to be killed, and ended with {codes}: {last}")
        return []
    results = [[line for line in o.splitlines() if line.startswith(RESULT_PREFIX)] for o in outputs]
    if any(codes) or not all(results):
        print(*outputs, sep="\n")
        raise JobError(f"{job} ended with {codes}: {last}")
    return [json.loads(lines[-1].removeprefix(RESULT_PREFIX)) for lines in results]


def run_killed_and_resumed(job, folder, kill_at, limit_s, ranks=1):
    """The results of an uninterrupted run, and of one that is killed in a step and started again."""
    whole = run_in_processes(replace(job, run_dir=str(folder / "whole")), limit_s, ranks=ranks)
    cut = replace(job, run_dir=str(folder / "killed"))
    run_in_processes(replace(cut, kill_at=kill_at), limit_s, ranks=ranks)
    return whole, run_in_processes(cut, limit_s, ranks=ranks)


class TransformerBlock(nn.Module):
    """Attention and two layers, both added to their inputs."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Transformer(nn.Module):
    """A network of bytes to logits of 256 bytes."""

    def __init__(self, width, heads, layers, length, dropout):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x):
        x = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x)))


def convnet(width, dropout):
    """A network from RGB images of 32x32 to 10 logits."""
    layers, channels = [], 3
    for wide in (width, 2 * width, 4 * width):
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
        layers += [nn.Conv2d(wide, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)]
        channels = wide
    head = nn.Linear(channels * 16, 128), nn.ReLU(), nn.Dropout(dropout), nn.Linear(128, 10)
    return nn.Sequential(*layers, nn.Flatten(), *head)


def model_of(job):
    if job.task == "convnet":
        return convnet(4 if job.small else 64, job.dropout)
    return Transformer(*((32, 2, 1, 16) if job.small else (512, 8, 6, 256)), job.dropout)


def data_of(job):
    """(rows of a batch, the dataset of an epoch), on the CPU, drawn from their own generator."""
    own = torch.Generator().manual_seed(11)
    size = 4 if job.small else 256 if job.task == "convnet" else 32
    count = EPOCH * size
    if job.task == "convnet":
        inputs = torch.randn(count, 3, 32, 32, generator=own)
        targets = torch.randint(10, (count,), generator=own)
    else:
        rows = torch.randint(256, (count, 17 if job.small else 257), generator=own)
        inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    return size, torch.utils.data.TensorDataset(inputs, targets)


def loss_of(outputs, targets):
    """The mean cross entropy; the logits flat, since CUDA's kernel for planes adds in no fixed order."""
    if outputs.dim() == 3:
        outputs, targets = outputs.flatten(0, 1), targets.flatten()
    return F.cross_entropy(outputs.float(), targets)


class Training:
    """Model, optimizer and one step of it."""

    def __init__(self, job):
        self.job, self.device = job, torch.device(job.device)
        self.model = model_of(job).to(self.device)
        self.called = DistributedDataParallel(self.model) if job.backend else self.model
        if job.compiled:
            self.called = torch.compile(self.called, mode=job.compiled)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)

    def step(self, inputs, targets):
        if self.job.compiled:
            torch.compiler.cudagraph_mark_step_begin()
        autocast = torch.autocast(self.device.type, torch.bfloat16)
        with autocast if self.job.dtype == "bfloat16" else nullcontext():
            loss = loss_of(self.called(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()  # the next graph writes where these lie
        return loss.detach()

    def results(self, **more):
        states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**{name: digest.of_value(state) for name, state in states.items()}, **more}


def train_plain(job):
    """Trains in a loop without a `Run`, over batches that are on the device."""
    training, (size, data) = Training(job), data_of(job)
    rows = (data[begin : begin + size] for begin in range(0, len(data), size))
    batches = [[x.to(training.device) for x in batch] for batch in rows]
    for number in range(job.steps):
        training.step(*batches[number % EPOCH])
    dynamo = sys.modules.get("torch._dynamo.utils")  # it counts graphs that torch.compile should have made
    skipped = 0 if dynamo is None else dynamo.counters["inductor"]["cudagraph_skips"]
    outcome = training.results()
    return {**outcome, "ms": _milliseconds(training, batches, job.timed), "skipped graphs": skipped}


def train_in_run(job):
    """Trains in a `samebits.Run` that commits at each step, and may kill its process."""
    training, (size, data) = Training(job), data_of(job)
    loader = DataLoader(data, size, shuffle=True)
    with Run(job.run_dir, model=training.model, optimizer=training.optimizer, save=1) as run:
        resumed = run.resumed
        for step, batch in run.steps(loader, epochs=-(-job.steps // EPOCH)):
            run.log(loss=training.step(*(x.to(training.device) for x in batch)))
            if step.number == job.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if step.number == job.steps - 1:
                run.stop()
    return training.results(resumed=bool(resumed))


def _milliseconds(training, batches, steps):
    """The median over blocks of steps, per step; 0 where none are timed."""

    def now():
        if training.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    found = []
    for begin in range(0, steps, _BLOCK):
        started = now()
        for number in range(begin, begin + _BLOCK):
            training.step(*batches[number % len(batches)])
        found.append((now() - started) / _BLOCK * 1e3)
    return statistics.median(found) if found else 0.0


def main(text):
    die_with_parent()
    job = TrainingJob(**json.loads(text))
    if job.dtype == "float32":
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
    set_random_seed(job.seed)
    if job.switch:
        enable_op_determinism()
    if job.backend:
        dist.init_process_group(job.backend)
    outcome = train_in_run(job) if job.run_dir else train_plain(job)
    # a line of its own, whatever a library has printed
    print(f"\n{RESULT_PREFIX}{json.dumps(outcome)}", flush=True)
    if job.backend:
        dist.destroy_process_group()
        os._exit(0)  # an interpreter's end would meet gloo's threads at work: they abort it


if __name__ == "__main__":
    main(sys.argv[1])
