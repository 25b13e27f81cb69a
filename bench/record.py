"""What recording costs: a small convolutional net on digits-like batches, levels interleaved with plain steps.

    python bench/record.py [ROUNDS]

Every round trains the same number of steps without a recorder, at level loss, and at level state, in a rotating
order; the medians over rounds are compared (per step of the net, per run of the digits example). One thread, and its CPU time, so that other
programs on the machine do not count; what the recorder writes is a system call of this thread and does count.
"""

from __future__ import annotations

import contextlib
import pathlib
import runpy
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable

import torch

import samebits.random
from samebits.audit._record.record_file import RecordFile
from samebits.audit._record.recorder import Recorder, recording
from samebits.train import Run

STEPS = 40
LEVELS = ("plain", "loss", "state")


def make_model() -> torch.nn.Module:
    layers = []
    for before, after in ((1, 16), (16, 32), (32, 64)):
        layers += [
            torch.nn.Conv2d(before, after, 3, padding=1),
            torch.nn.BatchNorm2d(after),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.1),
        ]
    head = [torch.nn.Flatten(), torch.nn.Linear(64 * 64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)]
    return torch.nn.Sequential(*layers, *head)


def train() -> float:
    """Seconds per step of STEPS steps of one run (the first two steps are not timed)."""
    samebits.random.set_random_seed(1)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    batches = [(torch.randn(64, 1, 8, 8), torch.randint(10, (64,))) for _ in range(STEPS)]
    loss_function = torch.nn.CrossEntropyLoss()
    best, total, history = float("inf"), 0.0, []
    with Run(None, model=model, optimizer=optimizer) as run:
        for step, (inputs, targets) in run.steps(batches):
            if step.number == 2:
                started = time.thread_time()
            loss = loss_function(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            best, total = min(best, loss.item()), total + loss.item()
            history.append(best)
    return (time.thread_time() - started) / (STEPS - 2)


def digits() -> float:
    """Seconds of two epochs of examples/digits.py."""
    script = str(pathlib.Path(__file__).parent.parent / "examples" / "digits.py")
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        sys.argv = [script, "--epochs", "2", "--run-dir", folder]
        started = time.thread_time()
        runpy.run_path(script, run_name="__main__")
    return time.thread_time() - started


def measure(program: Callable[[], float], level: str) -> float:
    if level == "plain":
        return program()
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(RecordFile(folder), level=level)
        with recording(recorder, __file__, level=level, every=1, allowed=(folder,)):
            seconds = program()
        recorder.finish()
        recorder.file.close()
        assert recorder.notes == [], recorder.notes
        return seconds


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, {rounds} rounds, CPU time")
    for name, program in ((f"small net, {STEPS} steps", train), ("examples/digits.py, 2 epochs", digits)):
        times: dict[str, list[float]] = {level: [] for level in LEVELS}
        for number in range(rounds + 1):
            for offset in range(len(LEVELS)):
                level = LEVELS[(number + offset) % len(LEVELS)]
                seconds = measure(program, level)
                if number:  # the first round warms up
                    times[level].append(seconds)
        medians = {level: statistics.median(times[level]) for level in LEVELS}
        print(name)
        for level in LEVELS:
            print(
                f"  {level:6s}{medians[level] * 1e3:10.3f} ms   ratio {medians[level] / medians['plain']:.4f}"
            )


if __name__ == "__main__":
    main()
