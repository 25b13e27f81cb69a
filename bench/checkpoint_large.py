"""A large state: seconds and memory of one commit and of one restore, beside torch.save and torch.load; `checkpoint.py --size`.

The state is the float32 weights of linear layers of 64 MiB each. All rows run interleaved, in another order each round, in
a process of its own each, with the files in the page cache. "Beside" is the memory that is neither the model's nor a file's
page (RssAnon and RssShmem of this process, sampled each 2 ms, above its value when the clock starts).
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import figures
import torch

import samebits
from samebits.checkpoint._store import CommitStore

LAYER = 4096 * 4096 * 4
"""Bytes of one layer."""
UNITS = {"GB": 10**9, "MB": 10**6, "GiB": 1 << 30, "MiB": 1 << 20}


BESIDE = 8
"""Steps between two commits beside the training."""
EXPLICIT: dict[str, Any] = {"save": "explicit", "check_complete": False, "allow_changes": ["script"]}


def layers_in(size: str) -> int:
    """Number of layers whose weights take about `size`, such as 1GB."""
    for unit, value in UNITS.items():
        if size.endswith(unit):
            return max(1, round(float(size.removesuffix(unit)) * value / LAYER))
    raise SystemExit(f"--size {size}: give a number and one of {', '.join(UNITS)}, such as 1GB")


class Memory:
    """The largest private and shared memory of this process while it is watched."""

    def __init__(self) -> None:
        self._begin, self._peak, self._over = self._now(), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def beside(self) -> int:
        """Bytes above those at the beginning; ends watching."""
        self._over.set()
        self._thread.join()
        return self._peak - self._begin

    def _watch(self) -> None:
        while not self._over.wait(0.002):
            self._peak = max(self._peak, self._now())

    @staticmethod
    def _now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("RssAnon", "RssShmem")))


@contextmanager
def measured(row: dict[str, float]) -> Iterator[None]:
    """Fills `row` with seconds, processor seconds and bytes."""
    memory, began, worked = Memory(), time.perf_counter(), time.process_time()
    yield
    row |= {"seconds": time.perf_counter() - began, "processor": time.process_time() - worked}
    row["beside"] = memory.beside()


def network(layers: int) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(layers)))


def save_by_torch(model: torch.nn.Module, folder: Path, row: dict[str, float]) -> None:
    """torch.save, fsync, rename, fsync of the folder."""
    with measured(row):
        with (folder / "new.pt").open("wb") as file:
            torch.save(model.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())
        (folder / "new.pt").replace(folder / "state.pt")
        descriptor = os.open(folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def commit(model: torch.nn.Module, folder: Path, row: dict[str, float]) -> None:
    """A commit that the run waits for, as at the end of a training or before it leaves."""
    with CommitStore(folder / "ours", keep=1) as store:
        before = store.newest()
        step = 1 + (before[0].step if before else 0)
        plain: dict[str, Any] = {"position": {}, "program": {}, "environment": {}}
        del before
        with torch.no_grad():
            next(model.parameters()).add_(step)  # another state than the last
        with measured(row):
            store.write(store.prepare({"model": model.state_dict()}, step=step, finished=True, **plain))


def commit_beside(model: torch.nn.Module, folder: Path, row: dict[str, float]) -> None:
    """A commit while the training goes on, until it is durable; "waited": by the step, "first": by that of the first commit.

    A step is a forward of 64 rows.
    """
    shutil.rmtree(folder / "beside", ignore_errors=True)
    loader = samebits.data.Pipeline.from_source(range(2 * BESIDE + 1)).batch(1)
    samebits.set_random_seed(1)
    options: dict[str, Any] = {**EXPLICIT, "save": BESIDE, "keep": 1}
    rows = torch.ones(64, 4096)
    memory, began = Memory(), 0.0
    with samebits.Run(folder / "beside", model=model, **options) as run:
        commits = run.parts.saving.commits
        assert commits is not None
        for step, _ in run.steps(loader):
            if step.number in (BESIDE, 2 * BESIDE):  # the boundary before it took the snapshot
                row["first" if step.number == BESIDE else "waited"] = time.perf_counter() - began
                commits.wait()
                row["seconds"] = time.perf_counter() - began
            if step.number == 2 * BESIDE:
                row["beside"] = memory.beside()
                break
            with torch.no_grad():
                model(rows)
                next(model.parameters()).add_(1)
            began = time.perf_counter()


def load_by_torch(model: torch.nn.Module, folder: Path, row: dict[str, float]) -> None:
    """torch.load(mmap=True) and load_state_dict; nothing is verified."""
    with measured(row):
        model.load_state_dict(torch.load(folder / "state.pt", mmap=True))


def restore(model: torch.nn.Module, folder: Path, row: dict[str, float]) -> None:
    """Entering a run until its first batch is there: every digest verified, and the model compared afterwards."""
    resume(torch.nn.Linear(8, 8), folder / "small")  # what a process imports and compiles once
    with measured(row):
        resume(model, folder / "run")


def resume(model: torch.nn.Module, folder: Path) -> None:
    samebits.set_random_seed(1)
    loader = samebits.data.Pipeline.from_source(range(9)).batch(1)
    with samebits.Run(folder, model=model, **EXPLICIT) as run:
        next(run.steps(loader))
        assert run.resumed


ROWS: dict[str, Callable[[torch.nn.Module, Path, dict[str, float]], None]] = {
    "torch.save + fsync": save_by_torch,
    "samebits, waiting": commit,
    "samebits, beside": commit_beside,
    "torch.load(mmap)": load_by_torch,
    "samebits, restore": restore,
}
BASE = {
    "samebits, waiting": "torch.save + fsync",
    "samebits, beside": "torch.save + fsync",
    "samebits, restore": "torch.load(mmap)",
}


def prepare(layers: int, folder: Path) -> None:
    """Makes the files that the restores read."""
    model = network(layers)
    save_by_torch(model, folder, {})
    for name, one in {"run": model, "small": torch.nn.Linear(8, 8)}.items():
        samebits.set_random_seed(1)
        loader = samebits.data.Pipeline.from_source(range(9)).batch(1)
        with samebits.Run(folder / name, model=one, **EXPLICIT) as run:
            for step, _ in run.steps(loader):
                if step.number == 1:
                    run.commit()
                if step.number == 2:
                    break


def child(name: str, layers: int, folder: Path) -> None:
    """Prints the figures of one row as JSON."""
    row: dict[str, float] = {}
    model = network(layers)
    ROWS[name](model, folder, row)
    print(json.dumps(row))


def measure(size: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Prints the rows; returns the table of a page."""
    layers = layers_in(size)
    print(f"{layers} layers, {layers * LAYER / 1e9:.2f} GB", flush=True)
    prepare(layers, folder)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in ROWS}
    order = list(ROWS)
    for number in range(rounds):
        turn = number % len(order)
        for name in order[turn:] + order[:turn]:
            arguments = [sys.executable, __file__, name, str(layers), str(folder)]
            done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True)
            taken[name].append(json.loads(done.stdout.splitlines()[-1]))
    rows: list[list[Any]] = []
    for name, values in taken.items():
        seconds = statistics.median(value["seconds"] for value in values)
        beside = statistics.median(value["beside"] for value in values) / LAYER
        text = f"{name:20} {seconds:6.2f} s, beside the model {beside:5.1f} layers of {LAYER >> 20} MiB"
        ratio = None
        if name in BASE:
            pairs = zip(values, taken[BASE[name]], strict=True)
            ratio = statistics.median(mine["seconds"] / theirs["seconds"] for mine, theirs in pairs)
            text += f", {ratio:.2f}x {BASE[name]}"
        if "waited" in values[0]:
            first, waited = (statistics.median(value[key] for value in values) for key in ("first", "waited"))
            rows += [
                [f"{name}: the training waits", waited, None, None],
                ["the same, the first commit", first, None, None],
            ]
            text += f"; the training waited {waited:.2f} s, at the first commit {first:.2f} s"
        rows.append([name, seconds, ratio, beside])
        print(text, flush=True)
    titles = (
        ("seconds", figures.RATIO),
        ("in times of torch's", figures.RATIO),
        ("beside the model, in layers of 64 MiB", "{:.1f}"),
    )
    return figures.table([("", ""), *titles], rows)


if __name__ == "__main__":
    child(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
