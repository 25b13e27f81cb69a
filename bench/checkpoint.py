"""What commits cost: milliseconds per step with none, at every 10th step, at each step and at the default budget.

    make bench-checkpoint                   # installs the peers beside the project's own environment, then runs this
    python bench/checkpoint.py [--rounds 5] [--only samebits,plain,lightning,hf,keras] [--folder runs/bench-checkpoint]
    python bench/checkpoint.py --device cuda    # model and state on a GPU; samebits and plain only
    python bench/checkpoint.py --size 1GB       # one large state, beside torch.save and torch.load (checkpoint_large.py)
    --json FILE writes the table of ratios

The task is an MLP 64-h-h-10 with Dropout and Adam on batches of 32 digits (random here), h = 128 (0.3 MB of weights and
moments, gradients on top) and h = 1024 (13.5 MB). "plain" is the same loop without samebits, which saves by torch.save,
fsync, rename and an fsync of the folder; the peers (checkpoint_peers.py) do not fsync. All rows run interleaved, block by
block in another order each round, each block of a peer in a process of its own; printed are medians over the blocks, as
ratios to the row "none" of the same framework, the commits made, and the largest lag.

Below: the time to restore, beyond that to read the bytes, after 10 steps and after 10^6.
"""

import argparse
import contextlib
import os
import random
import shutil
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoint_large
import figures
import torch
from checkpoint_peers import BATCH, PEERS, WARM, Task, clocks, missing, row

import samebits
from samebits.checkpoint._store import CommitStore

SIZES = {"small": 128, "big": 1024}
ROWS: dict[str, Any] = {"none": "explicit", "every 10": 10, "each step": 1, "budget 3%": "3%"}
SHOWN = {"each step": "each step", "every 10": "every 10 steps", "budget 3%": '`save="3%"`'}
"""The titles of rows in the table of a page."""
FRAMEWORKS = ("samebits", "plain", *PEERS)


def trained(task: Task, batch: Any) -> torch.Tensor:
    loss = task.loss(*batch)
    task.optimizer.zero_grad()
    loss.backward()
    task.optimizer.step()
    return loss


def state(task: Task) -> dict[str, Any]:
    generators = {"python": random.getstate(), "torch": torch.get_rng_state()}
    return {"model": task.model.state_dict(), "optimizer": task.optimizer.state_dict(), **generators}


def durable(path: Path, state: dict[str, Any]) -> None:
    """What a careful program does by hand."""
    with path.with_suffix(".new").open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".new").replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


Block = Callable[[int], tuple[float, float, int]]
"""Runs so many steps; milliseconds per step, those of processor time of the training thread, and commits made."""


def now(task: Task) -> tuple[float, float]:
    """The clocks, once the device has done what it was given."""
    if task.device.type == "cuda":
        torch.cuda.synchronize()
    return clocks()


def plain(hidden: int, folder: Path, every: int, device: str) -> Block:
    """The loop without samebits."""
    task = Task(hidden, device)
    loader = torch.utils.data.DataLoader(task.data, BATCH, shuffle=True)

    def block(steps: int) -> tuple[float, float, int]:
        (wall, processor), made = now(task), 0
        for number, batch in enumerate(_endless(loader, steps), 1):
            trained(task, batch)
            if every and number % every == 0:
                durable(folder / "checkpoint.pt", state(task))
                made += 1
        ended = now(task)
        return (ended[0] - wall) / steps, (ended[1] - processor) / steps, made

    return block


def ours(hidden: int, folder: Path, save: Any, lags: list[tuple[float, int]], device: str) -> Block:
    """The loop in a `Run`, entered anew for each block; the time begins when the first step of it does."""
    samebits.set_random_seed(7)

    def block(steps: int) -> tuple[float, float, int]:
        task = Task(hidden, device)
        loader = samebits.data.DataLoader(task.data, BATCH, shuffle=True)
        shutil.rmtree(folder, ignore_errors=True)
        made = 0
        began = ended = clocks()
        run = samebits.Run(
            folder, model=task.model, optimizer=task.optimizer, save=save, check_complete=False
        )
        with run:
            for step, batch in run.steps(loader, epochs=10**6):
                if step.number == WARM:  # by then the writer process is there
                    began, made = now(task), _written(run)
                if step.number == WARM + steps:
                    ended, made = now(task), _written(run) - made
                    break
                run.log(loss=trained(task, batch))
        if run.parts.saving.commits is not None and run.parts.saving.commits.written:
            lags.append((run.parts.saving.commits.lag, run.parts.saving.commits.lag_steps))
        return (ended[0] - began[0]) / steps, (ended[1] - began[1]) / steps, made

    return block


def _written(run: Any) -> int:
    return run.parts.saving.commits.written


def _endless(loader: Any, steps: int) -> Iterator[Any]:
    done = 0
    while True:
        for batch in loader:
            if done == steps:
                return
            done += 1
            yield batch


def rows(
    frameworks: list[str], hidden: int, folder: Path, lags: dict[str, list[tuple[float, int]]], device: str
) -> dict[tuple[str, str], Block]:
    """The blocks of one size by framework and row."""
    blocks: dict[tuple[str, str], Block] = {}
    for framework in frameworks:
        for name, save in ROWS.items():
            every = {"none": 0, "every 10": 10, "each step": 1}.get(name)
            if framework == "samebits":
                blocks[framework, name] = ours(hidden, folder / "ours", save, lags[name], device)
            elif every is not None:  # a budget is ours alone
                blocks[framework, name] = (
                    plain(hidden, folder, every, device)
                    if framework == "plain"
                    else row(framework, hidden, folder / framework, every)
                )
    return blocks


def measure(
    label: str, hidden: int, folder: Path, rounds: int, steps: int, frameworks: list[str], device: str
) -> dict[tuple[str, str], tuple[float, float]]:
    """Prints the rows of one size; returns the ratio and the largest lag in ms of each."""
    lags: dict[str, list[tuple[float, int]]] = {name: [] for name in ROWS}
    blocks = rows(frameworks, hidden, folder, lags, device)
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in blocks}
    made: dict[tuple[str, str], int] = dict.fromkeys(blocks, 0)
    order = list(blocks)
    for number in range(rounds):
        turn = number % len(order)
        for key in order[turn:] + order[:turn]:
            wall, processor, commits = blocks[key](steps)
            times[key].append((wall, processor))
            made[key] += commits
    found = {}
    for (framework, name), values in times.items():
        wall, processor = (statistics.median(pair[clock] for pair in values) for clock in (0, 1))
        ratios = [
            statistics.median(
                a[clock] / b[clock] for a, b in zip(values, times[framework, "none"], strict=True)
            )
            for clock in (0, 1)
        ]
        kind = "not fsynced" if framework in PEERS else "durable"
        lag, lag_steps = max(lags[name], default=(0.0, 0)) if framework == "samebits" else (0.0, 0)
        found[framework, name] = ratios[0], lag * 1e3
        lagging = f"  lag at most {lag * 1e3:.0f} ms ({lag_steps} steps)" if lag else ""
        print(
            f"{label:6} {framework:9} {name:10} {wall:8.3f} ms/step {ratios[0]:6.2f}x  "
            f"(training thread's processor time {processor:7.3f} ms {ratios[1]:5.2f}x)  "
            f"{made[framework, name]:5} commits ({kind}) in {rounds * steps} steps{lagging}",
            flush=True,
        )
    return found


def as_table(
    frameworks: list[str], found: list[dict[tuple[str, str], tuple[float, float]]]
) -> dict[str, Any]:
    """The table of a page: the ratios of both sizes, and how durable a commit is."""
    rows = []
    for framework in frameworks:
        cells = [[size[framework, name][0] for size in found if (framework, name) in size] for name in SHOWN]
        lags = [lag for size in found for (one, _), (_, lag) in size.items() if one == framework and lag]
        durable = "no fsync" if framework in PEERS else "yes"
        durable += f", within {min(lags):.0f} to {max(lags):.0f} ms" if lags else ""
        rows.append([framework, *(cell or None for cell in cells), durable])
    titles = [(title, figures.RATIO) for title in SHOWN.values()]
    return figures.table([("ratio, 0.3 MB / 13.5 MB", ""), *titles, ("durable", "")], rows)


def restore(label: str, hidden: int, folder: Path, number: int, device: str) -> None:
    """Prints how long it takes to come back, after so many steps (told by the commit, not trained)."""
    task = Task(hidden, device)
    trained(task, task.data[:BATCH])
    shutil.rmtree(folder, ignore_errors=True)
    samebits.set_random_seed(7)
    loader = samebits.data.DataLoader(task.data, BATCH, shuffle=True)
    run = samebits.Run(folder, model=task.model, optimizer=task.optimizer, save="explicit")
    with run:
        steps = run.steps(loader, epochs=10**6)
        next(steps)
        run.parts.loops.step = number - 1
        run.commit()
        next(steps)
    began = clocks()
    CommitStore(folder).newest()
    reading = [after - before for after, before in zip(clocks(), began, strict=True)]
    began = clocks()
    with samebits.Run(folder, model=task.model, optimizer=task.optimizer, save="explicit") as run:
        next(run.steps(loader, epochs=10**6))
        whole = [after - before for after, before in zip(now(task), began, strict=True)]
    print(
        f"{label:6} restore at step {number:>8}: {whole[0]:6.1f} ms, {whole[0] - reading[0]:6.1f} ms beyond reading and "
        f"verifying the bytes (processor time {whole[1]:.1f} ms, {whole[1] - reading[1]:.1f} ms beyond)",
        flush=True,
    )


def installed(frameworks: list[str]) -> list[str]:
    """Those that are here; a line for each that is not."""
    absent = {name: missing(name) for name in frameworks if name in PEERS}
    for name, package in absent.items():
        if package:
            print(f"{name}: skipped, {package} is not installed; `make bench-checkpoint` installs the peers")
    return [name for name in frameworks if not absent.get(name)]


def main() -> None:
    """Measures both sizes."""
    file = figures.file_asked()
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="per block; default 600 small, 120 big")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--only", default="", help="of samebits,plain,lightning,hf,keras; default all")
    parser.add_argument(
        "--size", default="", help="of one large state, such as 1GB, instead of the small ones"
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-checkpoint"))
    options = parser.parse_args()
    known = FRAMEWORKS if options.device == "cpu" else FRAMEWORKS[:2]
    only = options.only.split(",") if options.only else list(known)
    if unknown := sorted(set(only) - set(known)):
        parser.error(f"--only takes {','.join(known)} on {options.device}, not {','.join(unknown)}")
    if options.device != "cpu" and not torch.cuda.is_available():
        print("bench/checkpoint.py --device cuda: torch sees no GPU here")
        sys.exit(2)
    torch.set_num_threads(options.threads)
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    print(
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors; with others at work, only ratios mean something"
    )
    if options.size:
        figures.save(file, large=checkpoint_large.measure(options.size, options.folder, options.rounds))
        shutil.rmtree(options.folder)
        return
    frameworks, found = installed(only), []
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stderr(nowhere):  # a line per run
        for label, hidden in SIZES.items():
            steps = options.steps or (600 if label == "small" else 120)
            found.append(
                measure(label, hidden, options.folder, options.rounds, steps, frameworks, options.device)
            )
            if "samebits" in frameworks:
                for number in (10, 10**6):
                    restore(label, hidden, options.folder / "ours", number, options.device)
    figures.save(file, commits=as_table(frameworks, found))
    shutil.rmtree(options.folder)


if __name__ == "__main__":
    main()
