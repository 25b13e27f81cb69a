"""`python -m samebits.selfcheck.programs.train JOB`: trains by the JSON of a `TrainingJob`, and prints digests and times."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from samebits import _digest as digest
from samebits.audit._child.launch import die_with_parent
from samebits.data import DataLoader
from samebits.determinism import enable_op_determinism
from samebits.random import set_random_seed
from samebits.selfcheck.programs import tasks
from samebits.selfcheck.programs.job import RESULT_PREFIX, TrainingJob
from samebits.train import Run

EPOCH = 10
"""Batches of an epoch."""
_BLOCK = 5
"""Steps that are timed as one."""


class Training:
    """Model, optimizer and one step of it."""

    def __init__(self, job: TrainingJob) -> None:
        self.job, self.device = job, torch.device(job.device)
        self.model = tasks.model(job.task, small=job.small, dropout=job.dropout).to(self.device)
        self.called: nn.Module = self.model
        if job.backend:
            self.called = DistributedDataParallel(self.model)
        if job.compiled:
            self.called = torch.compile(self.called, mode=job.compiled)  # type: ignore[assignment]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)

    def precision(self) -> AbstractContextManager[Any]:
        """Returns autocast for bfloat16."""
        if self.job.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Makes forward, backward and update, and returns the loss."""
        if self.job.compiled:
            torch.compiler.cudagraph_mark_step_begin()
        with self.precision():
            loss = tasks.loss(self.called(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()  # the next graph writes where these lie
        return loss.detach()

    def results(self, **more: Any) -> dict[str, Any]:
        """Returns the digests of the trained objects."""
        return {
            "model": digest.of_value(self.model.state_dict()),
            "optimizer": digest.of_value(self.optimizer.state_dict()),
            **more,
        }


def train_plain(job: TrainingJob) -> dict[str, Any]:
    """Trains in a loop without a `Run`, over batches that are on the device."""
    training = Training(job)
    batches = list(_endless(job, training.device, EPOCH))
    for number in range(job.steps):
        training.step(*batches[number % EPOCH])
    outcome = training.results()
    return {**outcome, "ms": _milliseconds(training, batches, job.timed), "skipped graphs": _skipped_graphs()}


def _skipped_graphs() -> int:
    """Returns how often torch.compile made no CUDA graph where it should have."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else dynamo.counters["inductor"]["cudagraph_skips"]


def train_in_run(job: TrainingJob) -> dict[str, Any]:
    """Trains in a `samebits.Run` that commits at each step, and may kill its process."""
    training = Training(job)
    loader = DataLoader(
        tasks.data(job.task, small=job.small, batches=EPOCH), tasks.batch_size(job.task, small=job.small), shuffle=True
    )  # fmt: skip
    with Run(job.run_dir, model=training.model, optimizer=training.optimizer, save=1) as run:
        resumed = run.resumed
        for step, (inputs, targets) in run.steps(loader, epochs=-(-job.steps // EPOCH)):
            loss = training.step(inputs.to(training.device), targets.to(training.device))
            run.log(loss=loss)
            if step.number == job.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if step.number == job.steps - 1:
                run.stop()
    return training.results(resumed=bool(resumed))


def _endless(
    job: TrainingJob, device: torch.device, count: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    dataset = tasks.data(job.task, small=job.small, batches=count)
    size = tasks.batch_size(job.task, small=job.small)
    for number in range(count):
        inputs, targets = dataset[number * size : (number + 1) * size]
        yield inputs.to(device), targets.to(device)


def _milliseconds(training: Training, batches: list[Any], steps: int) -> float:
    """Returns the median over blocks of steps, per step; 0 where none are timed."""
    found = []
    for begin in range(0, steps, _BLOCK):
        started = _clock(training.device)
        for number in range(begin, begin + _BLOCK):
            training.step(*batches[number % len(batches)])
        found.append(_elapsed(started, _clock(training.device)) / _BLOCK)
    return statistics.median(found) if found else 0.0


def _clock(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _elapsed(begin: Any, end: Any) -> float:
    """Returns milliseconds."""
    if isinstance(begin, float):
        return (end - begin) * 1e3
    end.synchronize()
    return begin.elapsed_time(end)


def main(text: str) -> None:
    """Does the job, and prints its results."""
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
    print(
        f"\n{RESULT_PREFIX}{json.dumps(outcome)}", flush=True
    )  # a line of its own, whatever a library has printed
    if job.backend:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
