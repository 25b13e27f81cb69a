"""Commits of state in GPU memory: their bits, the cost of a snapshot per step, and the time of a restore."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samebits import _digest as digest
from samebits.checkpoint._prepared_commit import CommitPreparer
from samebits.checkpoint._store import CommitStore
from samebits.checkpoint._writer.snapshot_memory import SnapshotMemory
from samebits.determinism import enable_op_determinism
from samebits.random import set_random_seed
from samebits.selfcheck.agreement import same
from samebits.selfcheck.case import Case, Measured, Part, Results, Target, expected
from samebits.selfcheck.parts.commits import snapshot_alternatives
from samebits.selfcheck.programs.job import TrainingJob, run_killed_and_resumed
from samebits.train import Run

_SAVES: dict[str, Any] = {"none": "explicit", "every 10": 10, "each step": 1, "3%": "3%"}
_ROUNDS = 3


class TrainingTask:
    """An MLP with Adam on rows of 64 numbers."""

    def __init__(self, hidden: int, device: str) -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(
            nn.Linear(64, hidden), nn.ReLU(), nn.Dropout(0.3), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10),
        ).to(device)  # fmt: skip
        self.optimizer = torch.optim.Adam(self.model.parameters(), 2e-3)
        inputs, targets = torch.randn(45 * 32, 64), torch.randint(0, 10, (45 * 32,))
        self.data = torch.utils.data.TensorDataset(inputs.to(device), targets.to(device))

    def step(self, batch: list[torch.Tensor]) -> torch.Tensor:
        """Makes one update and returns the loss."""
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def bits(self) -> str:
        """Returns a digest of weights and moments."""
        return digest.of_value([self.model.state_dict(), self.optimizer.state_dict()])


def _run(task: TrainingTask, folder: Path, save: Any) -> Any:
    return Run(folder, model=task.model, optimizer=task.optimizer, save=save, check_complete=False)


def _trained(task: TrainingTask, folder: Path, save: Any, steps: int) -> float:
    """Returns milliseconds per step, after waiting for the device, without the first steps."""
    set_random_seed(7)
    batches = [task.data[begin : begin + 32] for begin in range(0, len(task.data), 32)]
    warm, began, ended = steps // 4, 0.0, 0.0
    with enable_op_determinism(), _run(task, folder, save) as run:
        for step, batch in run.steps(batches, epochs=10**6):
            if step.number == warm:
                began = _now(task)
            if step.number == warm + steps:
                ended = _now(task)
                run.stop()
            task.step(batch)
    return (ended - began) / steps * 1e3


def _now(task: TrainingTask) -> float:
    if next(task.model.parameters()).is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()


def measure_cost(hidden: int, target: Target) -> Measured:
    """Measures milliseconds per step at four cadences, in turn; and the bits of the newest commit and of the model."""
    hidden, steps = (8, 8) if target.small else (hidden, 200)
    times: dict[str, list[float]] = {name: [] for name in _SAVES}
    results: Results = {}
    for _ in range(1 if target.small else _ROUNDS):
        for name, save in _SAVES.items():
            folder = target.folder / "run"
            shutil.rmtree(folder, ignore_errors=True)
            task = TrainingTask(hidden, target.device)
            times[name].append(_trained(task, folder, save, steps))
            _, saved = CommitStore(folder).newest() or (None, {})
            objects = saved["objects"]
            results[f"the model, {name}"] = task.bits()
            results[f"its commit, {name}"] = digest.of_value([objects["model"], objects["optimizer"]])
    median = {name: statistics.median(values) for name, values in times.items()}
    figures: dict[str, float | str] = {f"ms/step, {name}": value for name, value in median.items()}
    figures["each step / none"] = median["each step"] / median["none"]
    size = (
        sum(p.numel() * p.element_size() for p in TrainingTask(hidden, "cpu").model.parameters()) * 3 / 2**20
    )
    return Measured(results, {"MiB": size, **figures})


def measure_restore(target: Target) -> Measured:
    """Measures the bits of a state of 600 MB before and after a restore, and the time of the restore."""
    hidden, folder = (8 if target.small else 7000), target.folder / "run"
    set_random_seed(7)
    task = TrainingTask(hidden, target.device)
    with _run(task, folder, "explicit") as run:
        for _, batch in run.steps([task.data[:32]], epochs=1):
            task.step(batch)
    began, other = time.perf_counter(), TrainingTask(hidden, target.device)
    made = time.perf_counter() - began
    began = time.perf_counter()
    with _run(other, folder, "explicit"):
        seconds = _now(other) - began
        bits = other.bits()
    size = sum(file.stat().st_size for file in folder.rglob("*.safetensors")) / 1e9
    return Measured(
        {"before": task.bits(), "after": bits},
        {"seconds": seconds, "GB": size, "seconds to make the model": made},
    )


_FACTS: dict[str, Any] = {"step": 1, "position": {}, "finished": False, "program": {}, "environment": {}}

PINNED: Results = {
    "pinned": True,
    "copies": ["xxh3-128:0"] * 3,
    "originals": ["xxh3-128:0"] * 3,
    "a kernel behind them": 4.0,
}


def measure_pinned(target: Target) -> Measured:
    """Copies into memory that grows, for states that change: it stays pinned, the bits are right, and kernels continue."""
    slot, preparer = SnapshotMemory(), CommitPreparer()
    copies, originals, rates = [], [], []
    unit = 10 if target.small else 10**6
    for count in (unit, unit + 1, 100 * unit):
        state = {
            "x": torch.arange(count, device=target.device),
            "y": torch.ones(count, 2, device=target.device).t(),
        }
        prepared = preparer.prepare(state, **_FACTS)
        for _ in range(3):
            state["x"] += 1
            began = time.perf_counter()
            slot.copy(preparer.prepare(state, **_FACTS))
            rates.append(count * 16 / (time.perf_counter() - began) / 1e9)
        memory = torch.frombuffer(slot._memory.mapped(1), dtype=torch.uint8)  # type: ignore[arg-type]
        parts = {
            name: memory[begin:end].clone()
            for name, (begin, end) in zip(prepared.layout.names, prepared.layout.spans, strict=True)
        }
        sources: dict[str, Any] = dict(zip(prepared.layout.names, prepared.sources, strict=True))
        del memory
        copies.append(digest.of_value([parts[name] for name in sorted(parts)]))
        originals.append(digest.of_value([_bytes(sources[name]) for name in sorted(sources)]))
    results = {
        "pinned": bool(slot._pinned),
        "copies": copies,
        "originals": originals,
        "a kernel behind them": float(torch.ones(4, device=target.device).sum()),
    }
    slot.close()
    return Measured(results, {"GB/s": rates[-1], "GB/s, small": rates[2]})


def judge_pinned(results: Results) -> Iterator[str]:
    """Yields an error unless the memory was pinned and the copy is equal."""
    yield from expected(**{**PINNED, "copies": results["copies"], "originals": results["copies"]})(results)


def _bytes(x: torch.Tensor) -> torch.Tensor:
    return x.cpu().contiguous().view(-1).view(torch.uint8)


def measure_resume(target: Target) -> Measured:
    """Measures the bits of an uninterrupted run, and of one that is killed and resumed; both commit at each step."""
    job = TrainingJob("convnet", target.device, steps=24, small=True)
    (whole,), (cut,) = run_killed_and_resumed(job, target.folder, 13, 90.0)
    results = {
        name: [outcome["model"], outcome["optimizer"]]
        for name, outcome in (("uninterrupted", whole), ("resumed", cut))
    }
    if not cut["resumed"]:
        results["began anew"] = []
    return Measured(results)


def _cases() -> Iterator[Case]:
    yield Case("memory for snapshots", measure_pinned, judge_pinned, limit_s=120, example=PINNED)
    bits = ["xxh3-128:0", "xxh3-128:1"]
    yield Case(
        "killed and resumed",
        measure_resume,
        same,
        limit_s=250,
        example={"uninterrupted": bits, "resumed": bits},
    )
    for name, hidden in (("0.3 MB", 128), ("13 MB", 1024), ("200 MB", 4096)):
        yield Case(
            f"a snapshot per step, {name}",
            lambda target, hidden=hidden: measure_cost(hidden, target),
            same,
            limit_s=150,
        )
    judge = expected(**snapshot_alternatives.EXPECTED)
    yield Case(
        "a copy beside the training, 100 MB",
        snapshot_alternatives.measure,
        judge,
        example=snapshot_alternatives.EXPECTED,
    )
    yield Case("restore", measure_restore, same, limit_s=120)


PART = Part(
    "commits",
    "commits from GPU memory: their bits, their cost per step, restore",
    3,
    _cases,
    {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
)
