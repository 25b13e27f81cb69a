"""Training on the GPU: `samebits verify` of the examples, the same weights in another process, the cost of the switch."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from samebits.data import Pipeline
from samebits.determinism import environment_fingerprint
from samebits.errors import VerifyError
from samebits.random import set_random_seed
from samebits.selfcheck.agreement import same
from samebits.selfcheck.case import Case, Measured, Part, Results, Target, expected
from samebits.selfcheck.programs.job import TrainingJob, run_in_fresh_processes

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
"""The folder in a clone; an installed samebits has none."""
_ROWS = (
    "run again",
    "beside busy processes",
    "killed mid-epoch, resumed",
    "killed at an epoch's last step, resumed",
    "killed in a validation, then in a save, resumed twice",
    "0 loader workers",
    "1 loader worker",
    "3 loader workers",
    "1 thread",
    "3 threads",
)
_OLDER_CPU = "a CPU with AVX2"
"""A row of machines whose CPU has more than AVX2."""
VERIFIED: Results = {"exit": 0, "verdict": "VERIFIED", "rows": dict.fromkeys(_ROWS, "equal")}
"""The results of `verify` for the examples."""
_JOBS = 3
"""Runs at a time: the examples need little of a GPU's memory."""
_LIMIT_S = 280.0


def verify_example(script: str, target: Target, *options: str) -> Measured:
    """Runs `samebits verify` of an example in a process."""
    file, began = target.folder / "verify.json", time.monotonic()
    ended = _verify(script, ["--json", str(file), "--jobs", str(_JOBS), *options], target.device)
    if not file.exists():
        raise VerifyError(f"verify {script} ended with {ended.returncode}: {_why(ended.stderr)}")
    outcome = json.loads(file.read_text(encoding="utf-8"))
    rows = {row["check"]: _of_row(row) for row in outcome["rows"] if row["promised"]}
    if rows.get(_OLDER_CPU) == "equal":
        del rows[_OLDER_CPU]
    results = {"exit": ended.returncode, "verdict": outcome["verdict"].split(":")[0], "rows": rows}
    steps, seconds = outcome["rows"][0]["steps_compared"], time.monotonic() - began
    return Measured(results, {"digest": outcome["final"], "steps": steps, "seconds": seconds})


def _verify(script: str, options: list[str], device: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "samebits", "verify", *options, script, "--device", device]
    try:
        return subprocess.run(
            command,
            cwd=EXAMPLES,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise VerifyError(f"verify {script} took more than {_LIMIT_S:g} s") from None


def _environment() -> dict[str, str]:
    """Returns the environment with these very sources for any working folder: `PYTHONPATH=src` would be another folder
    there.
    """
    paths = [str(Path(__file__).resolve().parents[3]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths if path)}


def _why(output: str) -> str:
    """Returns its last line without the path in it; all of it, and the script's own output, go to the report's output.txt."""
    print(output)
    line = next(iter(output.strip().splitlines()[-1:]), "(it printed nothing)")
    found = re.search(r" \(its output: (.*)\)$", line)
    if found is None:
        return line
    print(Path(found[1]).read_text(encoding="utf-8", errors="replace"))
    Path(found[1]).unlink()
    return line[: found.start()]


def _of_row(row: dict[str, Any]) -> str:
    return (
        "equal"
        if row["equal"]
        else str(row["note"] or (row["difference"] or {}).get("sentence", "not equal"))
    )


def _example(script: str, *needs: str) -> Case:
    here = (EXAMPLES / script).exists()
    return Case(
        f"samebits verify {script}",
        lambda target: verify_example(script, target),
        expected(**VERIFIED),
        limit_s=_LIMIT_S + 10,
        needs=needs if here else ("the folder examples of a clone",),
        example=VERIFIED,
    )


def train_twice(task: str, dtype: str, target: Target) -> Measured:
    """Measures the weights of two processes with the switch; and times with and without it, in turn."""
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for switch in (True, False, True, False):
        timed = 10 if target.small else 50
        job = TrainingJob(task, target.device, dtype, timed=timed, switch=switch, small=target.small)
        found[switch] += run_in_fresh_processes(job, 100.0)
    on, off = (statistics.median(one["ms"] for one in found[switch]) for switch in (True, False))
    first, second = found[True]
    digests = {name: (first[name], second[name]) for name in ("model", "optimizer")}
    alike = len({one["model"] for one in found[False]}) == 1
    return Measured(
        {
            "one process": [mine for mine, _ in digests.values()],
            "another": [other for _, other in digests.values()],
        },
        {"ms/step": on, "without the switch": off, "ratio": on / off, "equal without": str(alike)},
    )


def _twice(task: str, dtype: str) -> Case:
    measure: Callable[[Target], Measured] = lambda target: train_twice(task, dtype, target)  # noqa: E731
    digests = ["xxh3-128:0", "xxh3-128:1"]
    example = {"one process": digests, "another": digests}
    return Case(f"{task}, {dtype}, 20 steps", measure, same, limit_s=200, example=example)


PRECISIONS: Results = {"float32_matmul_precision": "high", "cudnn": True, "16-bit sums": True}


def measure_precisions(target: Target) -> Measured:
    """Measures that the fingerprint names TensorFloat-32 in products and cuDNN, and 16-bit sums."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = (
        torch.get_float32_matmul_precision(),
        cudnn.allow_tf32,
        matmul.allow_bf16_reduced_precision_reduction,
    )
    flags = []
    try:
        torch.set_float32_matmul_precision("high")
        for choice in (True, False):
            cudnn.allow_tf32 = matmul.allow_bf16_reduced_precision_reduction = choice
            flags.append(environment_fingerprint()["flags"])
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, matmul.allow_bf16_reduced_precision_reduction = before[1:]
    yes, no = flags
    return Measured(
        {
            "float32_matmul_precision": yes["float32_matmul_precision"],
            "cudnn": yes["cudnn_conv_fp32_precision"] != no["cudnn_conv_fp32_precision"],
            "16-bit sums": yes["bf16_reduced_precision_reduction"] != no["bf16_reduced_precision_reduction"],
        }
    )


def measure_batches(target: Target) -> Measured:
    """Measures batches that a Pipeline has copied to a device that is behind with its work, against those of the CPU."""
    set_random_seed(7)
    rows, width, busy = 32, (8 if target.small else 1 << 18), (8 if target.small else 4096)
    product = torch.full((busy, busy), 0.5, device=target.device)

    def row(number: int) -> torch.Tensor:
        return torch.arange(float(width)) + 1000 * number

    pipeline = Pipeline.range(rows).map(row).batch(4)
    results: Results = {"on the CPU": [batch + 1 for batch in pipeline]}
    for workers in (0, 2):
        moved = []
        for batch in pipeline.with_options(num_parallel_calls=workers).prefetch(2, device=target.device):
            product = (product @ product).tanh()
            moved.append(batch + 1)  # and its memory is free for the next ones
        results[f"on the device, {workers} workers"] = [one.cpu() for one in moved]
    return Measured(results)


def _cases() -> Iterator[Case]:
    yield Case(
        "the record tells of TensorFloat-32", measure_precisions, expected(**PRECISIONS), example=PRECISIONS
    )
    yield _example("digits.py", "sklearn")
    yield _twice("transformer", "float32")
    yield _twice("convnet", "float32")
    yield _example("language_model.py")
    names = ("on the CPU", "on the device, 0 workers", "on the device, 2 workers")
    few: Results = {name: [torch.ones(4)] for name in names}
    yield Case("batches copied beside the computation", measure_batches, same, limit_s=120, example=few)
    yield _twice("transformer", "bfloat16")
    yield _twice("convnet", "bfloat16")


PART = Part(
    "training",
    "the examples are verified, training repeats in another process, and what the switch costs",
    8,
    _cases,
)
