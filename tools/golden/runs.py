"""Commits and records of small runs, and what a step of a `Run` sets before the body runs."""

from __future__ import annotations

import json
import os
import random as python_random
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch

import samebits
from samebits import random

Facts = Iterator[tuple[str, Any]]
VARYING = ("argv", "time", "seconds", "started", "ended", "host", "pid", "script", "hashseed", "compiled")
"""Keys of records whose values depend on when, where and how the script was started; replaced by their type."""


def normalised(value: Any, varying: tuple[str, ...] = VARYING) -> Any:
    """The value, with what stands under a varying key replaced."""
    if isinstance(value, dict):
        return {
            key: type(item).__name__ if key in varying else normalised(item, varying)
            for key, item in value.items()
        }
    return [normalised(item, varying) for item in value] if isinstance(value, list) else value


COMMITTING = """
import sys, torch, samebits
from samebits import random
from torch import nn
kind = sys.argv[1]
samebits.enable_op_determinism(across="threads")
samebits.set_random_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3))
model = samebits.nn.own_randomness(model)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9)
x = random.normal(random.key(1), 24, 8)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 1).long())
batches = samebits.data.DataLoader(data, batch_size=8, shuffle=True)
if kind == "pipeline":
    batches = samebits.data.Pipeline.from_source(data).shuffle().batch(8)
generator = random.Generator.from_seed(3)
things = dict(model=model, optimizer=optimizer, scheduler=scheduler, generator=generator)
with samebits.Run(kind, save="explicit", keep=100, **things) as run:
    for loop in ("first", "second") if kind == "pipeline" else ("",):
        for step, (inputs, target) in run.steps(batches, epochs=2, **({"name": loop} if loop else {})):
            loss = nn.functional.cross_entropy(model(inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.state.noise = generator.normal(2)
            run.state.kept = {"list": [1, 2.5, None, "a"], "best": min(loss.item(), 9.0), "infinite": float("inf")}
            run.log(loss=loss)
            if step.batch_index % 2 == 0:
                run.commit()
"""


def commits(tree: Path) -> Facts:
    """The bytes of every file of each commit of a small run: of a loader, and of a pipeline in two loops."""
    Path("commits.py").write_text(COMMITTING)
    for kind in ("loader", "pipeline"):
        subprocess.run([sys.executable, "commits.py", kind], check=True, capture_output=True)
        yield from _run_directory(kind, Path(kind))


def _run_directory(name: str, folder: Path) -> Facts:
    for number, commit in enumerate(sorted((folder / "commits").iterdir())):
        for file in sorted(commit.iterdir()):
            content: Any = file.read_bytes()
            if file.name == "manifest.json":  # whether it has a note depends on the time that is left for one
                content = {key: value for key, value in json.loads(content).items() if key != "note"}
            yield f"{name}/{number}/{file.name}", [commit.name, content]
    yield f"{name}/samebits-run.json", (folder / "samebits-run.json").read_bytes()


RECORDED = """
import torch, samebits
from torch import nn
samebits.set_random_seed(1)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
data = torch.utils.data.TensorDataset(torch.randn(24, 8), torch.randint(3, (24,)))
loader = samebits.data.DataLoader(data, batch_size=8, shuffle=True)
RUN
"""
LOOPS = {
    "run": """
with samebits.Run(None, model=model, optimizer=optimizer) as run:
    for step, (x, y) in run.steps(loader, epochs=2):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            model.eval()
            with torch.no_grad():
                run.state.seen = [float(model(a).sum()) for a, b in run.validate(loader)]
            model.train()
""",
    "plain": """
for epoch in range(2):
    for x, y in torch.utils.data.DataLoader(data, 8, shuffle=True):
        optimizer.zero_grad(); nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()
""",
    "trainer": """
trainer = samebits.Trainer(model, nn.CrossEntropyLoss(), optimizer, accumulate=2, clip_norm=1.0, precision="bf16", ema=0.9)
print(trainer.fit(loader, epochs=2, validation_data=loader, verbose=0).history)
""",
}


def record(tree: Path) -> Facts:
    """The lines of the record of three recorded scripts, by level; what they print."""
    for name, loop in LOOPS.items():
        Path(f"{name}.py").write_text(RECORDED.replace("RUN", loop))
        for level in ("loss", "state") if name == "run" else ("state",):
            options = [
                "--seed",
                "3",
                "--across",
                "threads",
                "--record",
                f"{name}-{level}",
                "--record-level",
                level,
            ]
            printed = samebits_command("run", *options, f"{name}.py")
            yield f"{name}/{level}/printed", printed
            yield from recorded(f"{name}/{level}", Path(f"{name}-{level}") / "record.jsonl")


def samebits_command(*arguments: str) -> str:
    """What a command of samebits prints."""
    done = subprocess.run(
        [sys.executable, "-m", "samebits", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"golden: samebits {' '.join(arguments)} failed: {done.stderr.strip()[-500:]!r}")
    return re.sub(r"\b\d[\d.]* m?s\b", "N s", done.stdout).replace(os.getcwd(), "HERE")


def recorded(name: str, file: Path, *more: str) -> Facts:
    """A fact for each kind of line, and of steps for each."""
    numbers = count()
    for line in map(json.loads, file.read_text().splitlines()):
        number = line["step"] if line["kind"] == "step" else next(numbers)
        yield f"{name}/{line['kind']}/{number}", normalised(line, (*VARYING, *more))


def steps(tree: Path) -> Facts:
    """The numbers of torch, NumPy, Python, the global generator and a keyed layer in each step of a `Run`, and in a validation."""
    samebits.set_random_seed(1)
    dropout = samebits.nn.Dropout(0.5)
    with samebits.Run(None, dropout=dropout) as run:
        for loop in ("one", "two"):
            for step, _ in run.steps(range(3), epochs=2, name=loop):
                yield f"{loop}/{step.epoch}/{step.batch_index}", _drawn(dropout)
                if step.ends_epoch:
                    for number, _ in enumerate(run.validate(range(2))):
                        yield f"{loop}/{step.epoch}/validation/{number}", _drawn(dropout)


def _drawn(dropout: torch.nn.Module) -> list[Any]:
    own = random.get_global_generator()
    return [
        *(torch.randint(2**40, (3,)), np.random.randint(2**40, size=3), python_random.getrandbits(64)),
        *(own.bits(3), own.normal(2), dropout(torch.ones(20)), dict(random.draws())),
    ]


SECTIONS = {"commits": commits, "record": record, "steps": steps}
