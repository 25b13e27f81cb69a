"""Milliseconds per durable commit: samebits against torch.save + fsync + rename + fsync of the folder.

    python bench/commit.py [--rounds 40] [--folder runs/bench-commit]

The two alternate in one process, so that both meet the same disk; medians and their ratio are printed. The
states are Adam after one step of an MLP, 0.32 MB and 13.5 MB (as in published checkpoint measurements), with
Python's and torch's generator states. samebits also keeps the last two commits, hashes every tensor, and
compares what it reads; "raw" is the floor: the same bytes written to one new file, fsynced, renamed.
"""

import argparse
import os
import random
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from samebits.checkpoint import CommitStore

NOTHING = {"position": {}, "finished": False, "program": {}, "environment": {}}


def state_of(width: int) -> dict[str, Any]:
    """Model, Adam and generator states of an MLP 64 - width - width - 10 after one step."""
    model = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width))
    model.append(torch.nn.Linear(width, 10))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 64)).sum().backward()
    optimizer.step()
    generators = {"python": random.getstate(), "torch": torch.get_rng_state()}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generators": generators}


def durable(folder: Path, write: Callable[[Any], None]) -> None:
    """Writes one file beside, fsyncs, renames, fsyncs the folder."""
    with (folder / "new").open("wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(folder / "new", folder / "checkpoint")
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds of one call."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def measure(label: str, state: dict[str, Any], folder: Path, rounds: int) -> None:
    """Prints one line."""
    folder.mkdir(parents=True)
    times: dict[str, list[float]] = {
        "samebits": [],
        "torch.save": [],
        "raw": [],
        "load": [],
        "torch.load": [],
    }
    with CommitStore(folder / "run") as store:
        first = store.commit(0, state, **NOTHING)
        size = sum(file["bytes"] for file in first.files.values())
        block = os.urandom(size)
        for number in range(1, rounds + 1):
            times["samebits"].append(timed(lambda n=number: store.commit(n, state, **NOTHING)))
            times["torch.save"].append(timed(lambda: durable(folder, lambda file: torch.save(state, file))))
            times["torch.load"].append(timed(lambda: torch.load(folder / "checkpoint", weights_only=True)))
            times["raw"].append(timed(lambda: durable(folder, lambda file: file.write(block))))
            times["load"].append(timed(store.newest))
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours, theirs, floor = medians["samebits"], medians["torch.save"], medians["raw"]
    print(
        f"{label:8} {size / 1e6:6.2f} MB  commit {ours:7.2f} ms  torch.save {theirs:7.2f} ms ({ours / theirs:.2f}x)  "
        f"raw {floor:7.2f} ms ({ours / floor:.2f}x)  read and verify {medians['load']:6.2f} ms  "
        f"torch.load {medians['torch.load']:6.2f} ms ({medians['load'] / medians['torch.load']:.2f}x)"
    )


def main() -> None:
    """Measures both states."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-commit"))
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    for label, width in (("small", 128), ("big", 1024)):
        measure(label, state_of(width), options.folder / label, options.rounds)
    shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
