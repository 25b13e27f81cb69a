"""Training on a GPU: `samebits verify` of the examples, the same weights in another process and on several ranks."""

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from agreement import expected, same
from samebits.audit._verify import check_plan
from samebits.data import Pipeline
from samebits.determinism import environment_fingerprint
from samebits.random import set_random_seed
from training_job import JobError, TrainingJob, run_in_processes, run_killed_and_resumed

ROOT = Path(__file__).resolve().parents[2]
ROWS = (
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
OLDER_CPU = "a CPU with AVX2"
"""A row of machines whose CPU has more than AVX2."""
VERIFIED = {"exit": 0, "verdict": "VERIFIED", "rows": dict.fromkeys(ROWS, "equal")}
BITS = ["xxh3-128:0", "xxh3-128:1"]


def verified(target, script, *options):
    """The exit status, verdict and rows of `samebits verify` in a process."""
    file, began = target.folder / "verify.json", time.monotonic()
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        "--json",
        str(file),
        "--jobs",
        "3",
        *options,
    ]
    paths = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [*command, str(script), "--device", target.device],
        cwd=script.parent, env={**os.environ, "PYTHONPATH": paths}, text=True, timeout=280, check=False,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert file.exists(), f"verify {script.name} ended with {done.returncode}: {done.stderr[-500:]}"
    found = json.loads(file.read_text(encoding="utf-8"))
    rows = {row["check"]: _word(row) for row in found["rows"] if row["promised"]}
    if rows.get(OLDER_CPU) == "equal":
        del rows[OLDER_CPU]
    target.figures |= {"digest": found["final"], "steps": found["rows"][0]["steps_compared"]}
    target.figures["seconds"] = time.monotonic() - began
    return {"exit": done.returncode, "verdict": found["verdict"].split(":")[0], "rows": rows}


def _word(row):
    other = row["note"] or (row["difference"] or {}).get("sentence", "not equal")
    return "equal" if row["equal"] else str(other)


@pytest.mark.limit(290)
@pytest.mark.parametrize("script", ["digits.py", "language_model.py"])
def test_verify_of_an_example_on_the_gpu(target, script):
    """`samebits verify` finds every row equal: killed, resumed, with other workers and threads."""
    if script == "digits.py":
        pytest.importorskip("sklearn")
    target.check(expected(**VERIFIED), verified, ROOT / "examples" / script, example=VERIFIED)


def trained_twice(target, task, dtype):
    """The weights of two processes with the switch; and times with and without it, in turn."""
    found = {True: [], False: []}
    for switch in (True, False, True, False):
        timed = 10 if target.small else 50
        job = TrainingJob(task, target.device, dtype, timed=timed, switch=switch, small=target.small)
        found[switch] += run_in_processes(job, 100.0)
    on, off = (statistics.median(one["ms"] for one in found[switch]) for switch in (True, False))
    alike = len({one["model"] for one in found[False]}) == 1
    target.figures |= {"ms/step": on, "without the switch": off, "ratio": on / off, "equal without": alike}
    one, another = ([each["model"], each["optimizer"]] for each in found[True])
    return {"one process": one, "another": another}


@pytest.mark.limit(200)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("task", ["transformer", "convnet"])
def test_training_repeats_in_another_process(target, task, dtype):
    """Two processes end with the same weights under the switch; its cost is a figure."""
    target.check(same, trained_twice, task, dtype, example={"one process": BITS, "another": BITS})


RANKS = ("convnet", "", 1), ("transformer", "nccl", 1), ("transformer", "gloo", 2)
"""Task, backend and number of ranks of a run; without a backend it is one process."""


def ranks_killed(target, task, backend, ranks):
    """The bits of each rank, of an uninterrupted run and of one that is killed on all ranks and started again."""
    job = TrainingJob(task, target.device, steps=24, small=True, backend=backend)
    whole, resumed = run_killed_and_resumed(job, target.folder, 13, 90.0, ranks)
    results = {}
    for kind, outcome in (("uninterrupted", whole), ("killed and resumed", resumed)):
        for rank, one in enumerate(outcome):
            results[f"rank {rank}, {kind}"] = [one["model"], one["optimizer"]]
    told = [one["resumed"] for one in (*whole, *resumed)]
    return results if told == [False] * ranks + [True] * ranks else {**results, "resumed": told}


@pytest.mark.limit(280)
@pytest.mark.parametrize("task, backend, ranks", RANKS)
def test_ranks_on_one_gpu_are_killed_and_resumed(target, task, backend, ranks):
    """A `Run`, plain or with DistributedDataParallel, ends, killed and resumed, with the bits of an uninterrupted one."""
    target.check(same, ranks_killed, task, backend, ranks, example={"rank 0": BITS, "rank 0, killed": BITS})


PRECISIONS = {"float32_matmul_precision": "high", "cudnn": True, "16-bit sums": True}


def precisions(target):
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
    return {
        "float32_matmul_precision": yes["float32_matmul_precision"],
        "cudnn": yes["cudnn_conv_fp32_precision"] != no["cudnn_conv_fp32_precision"],
        "16-bit sums": yes["bf16_reduced_precision_reduction"] != no["bf16_reduced_precision_reduction"],
    }


def test_the_record_names_tensor_float_32(target):
    """The fingerprint names TensorFloat-32 in products and in cuDNN, and sums of 16 bits."""
    target.check(expected(**PRECISIONS), precisions, example=PRECISIONS)


def moved_batches(target):
    """Batches that a Pipeline has copied to a device that is behind with its work, and those of the CPU."""
    set_random_seed(7)
    width, busy = (8, 8) if target.small else (1 << 18, 4096)
    product = torch.full((busy, busy), 0.5, device=target.device)
    rows = Pipeline.range(32).map(lambda number: torch.arange(float(width)) + 1000 * number).batch(4)
    results = {"on the CPU": [batch + 1 for batch in rows]}
    for workers in (0, 2):
        moved = []
        for batch in rows.with_options(num_parallel_calls=workers).prefetch(2, device=target.device):
            product = (product @ product).tanh()
            moved.append(batch + 1)  # and its memory is free for the next ones
        results[f"on the device, {workers} workers"] = [one.cpu() for one in moved]
    return results


@pytest.mark.limit(120)
def test_batches_are_copied_beside_the_computation(target):
    """The batches that a pipeline moves are those of the CPU, with workers and without."""
    target.check(same, moved_batches)


# --- controls, on the CPU ---

SMALL = TrainingJob(device="cpu", small=True, steps=6)


def test_the_rows_are_those_of_verify():
    """The rows that an example must have are those that verify promises of a script with a Run, loaders and epochs."""
    facts = check_plan.BaselineFacts(
        tuple(range(9)), frozenset({3, 6, 8}), frozenset({0, 4, 7}), (3, 6), True, [0], across="threads"
    )
    rows = [check_plan.run_again(), *check_plan.checks_after(facts, check_plan.GROUPS, 1)]
    assert tuple(check.name for check in rows) == ROWS and all(row.promised for row in rows)


BROKEN = """
import argparse, os, torch, samebits
parser = argparse.ArgumentParser()
parser.add_argument("--device")
parser.parse_args()
samebits.set_random_seed(1)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 1e-9 * os.getpid())
with samebits.Run("runs/x", model=model, optimizer=optimizer) as run:
    for step, x in run.steps(samebits.data.DataLoader(torch.randn(12, 2), batch_size=2), epochs=2):
        model(x).sum().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_script_that_does_not_repeat_is_seen(small):
    """The judge sees a script whose steps depend on the process; where verify writes no report, it is an error."""
    small.folder.joinpath("broken.py").write_text(BROKEN)
    results = verified(small, small.folder / "broken.py", "--checks", "kill-mid-epoch", "--steps", "8")
    assert results["exit"] == 1 and results["verdict"] == "NOT REPRODUCIBLE"
    assert len(list(expected(**VERIFIED)(results))) == 3
    small.folder.joinpath("raises.py").write_text("1 / 0")
    small.folder.joinpath("verify.json").unlink()
    with pytest.raises(AssertionError, match=r"raises.py ended with 2"):
        verified(small, small.folder / "raises.py")


@pytest.mark.slow
def test_another_seed_is_seen(small):
    """Two processes end with the same weights, and one with another seed does not."""
    results = trained_twice(small, "convnet", "bfloat16")
    assert not list(same(results)) and small.figures["ratio"] > 0
    (other,) = run_in_processes(replace(SMALL, steps=20, task="convnet", dtype="bfloat16", seed=2), 200)
    assert list(same({**results, "another": [other["model"], other["optimizer"]]}))


@pytest.mark.slow
def test_a_process_that_fails_is_an_error():
    """A job that raises, takes too long, or is not killed where it should be is an error with its last lines."""
    for change, limit_s, message in (
        ({"device": "no_such_device"}, 200, r"ended with \[1\].*device"),
        ({"steps": 10**6}, 12, "took more than"),
        ({"kill_at": 5}, 200, "was to be killed"),
    ):
        with pytest.raises(JobError, match=message):
            run_in_processes(replace(SMALL, **change), limit_s)


@pytest.mark.slow
@pytest.mark.parametrize("task, backend, ranks", [RANKS[0], RANKS[2]])
def test_ranks_are_killed_and_resumed(small, task, backend, ranks):
    """On the CPU each rank of a killed and resumed run has the bits of an uninterrupted one, and says that it was resumed."""
    results = ranks_killed(small, task, backend, ranks)
    assert not list(same(results)) and len(results) == 2 * ranks
