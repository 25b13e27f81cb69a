import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
import torch

import samebits
from lab.review.review import review
from lab.review.worker import ReviewWorker, WorkerError
from samebits.errors import InvalidArgumentError

KNOWN = {
    "index_put accumulate": "indexing: index_put accumulate [",
    "x[i] backward": "indexing: x[i] [",
    "put_ accumulate": "indexing: put_ accumulate [",
    "take backward": "indexing: take [",
    "put_ overwrite": "indexing: put_ overwrite [",
    "lstsq": "linalg: lstsq, default driver",
}
"""What torch varies in on a CPU: from run to run with two threads, where a race is lost, or over threads."""
SETTINGS = {"switch": False, "across": "runs"}


@pytest.fixture(scope="module")
def off():
    return review(switch=False, only=list(KNOWN.values()), sources=["battery"])


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_without_the_switch_the_known_ops_vary(off, name):
    """Negative control: the battery finds each op that is known to vary, and exits with 1."""
    if name == "lstsq" and torch.__version__ >= "2.15":
        pytest.skip("torch 2.15 writes the memory that lstsq read unwritten before")
    rows = [row for row in off.rows if row.full_name.startswith(KNOWN[name])]
    assert not all(row.equal for row in rows), [row.result() for row in rows]
    assert off.exit == 1


@pytest.mark.slow
def test_with_the_switch_they_are_equal():
    """The same cases under the switch: equal from run to run and over threads, and none refused."""
    found = review(only=list(KNOWN.values()), sources=["battery"])
    assert len(found.rows) > 8
    assert [row.full_name for row in found.rows if not row.equal] == []
    assert found.exit == 0 and found.disagreements == []


def test_names():
    """Names that no case has are refused."""
    with pytest.raises(InvalidArgumentError, match="no_such_op"):
        review(only=["no_such_op"], sources=["battery"])


@pytest.mark.slow
def test_this_process_is_left_as_it_was():
    """The review changes neither threads, nor the switch, nor the generator of the process that asks for it."""
    before = torch.get_num_threads(), torch.random.get_rng_state()
    review(only=["matmul: mm 7x64x64 [float32]"], sources=["battery"])
    assert torch.get_num_threads() == before[0] and torch.equal(torch.random.get_rng_state(), before[1])
    assert not samebits.op_determinism_enabled()


@pytest.mark.slow
def test_a_crash_costs_one_case(tmp_path):
    """A worker that dies of a signal is an error for its case; the next case gets a new worker."""

    async def crash():
        async with ReviewWorker(SETTINGS, tmp_path, 60) as worker:
            await worker.ask("measure", "matmul: mm 7x64x64 [float32]")
            os.kill(worker._process.pid, signal.SIGSTOP)  # it is not to be done before the signal comes
            task = asyncio.ensure_future(worker.ask("measure", "linalg: lstsq, default driver [float32]"))
            await asyncio.sleep(0.05)
            os.kill(worker._process.pid, signal.SIGSEGV)
            os.kill(worker._process.pid, signal.SIGCONT)
            with pytest.raises(WorkerError, match="SIGSEGV"):
                await task
            row = await worker.ask("measure", "matmul: mm 7x64x64 [float32]")
            with pytest.raises(WorkerError, match="KeyError: 'nonsense'"):  # what it printed last
                await worker.ask("list", "nonsense")
            return row

    assert asyncio.run(crash())["runs"] is True


def test_a_hang_costs_one_case(tmp_path):
    """A worker that takes longer than its limit is ended, and says so."""

    async def hang():
        async with ReviewWorker(SETTINGS, tmp_path, 0.2) as worker:
            with pytest.raises(WorkerError, match="more than"):
                await worker.ask("measure", "matmul: mm 7x64x64 [float32]")
            return worker._process

    assert asyncio.run(hang()) is None


@pytest.mark.slow
def test_the_command_prints_a_table_and_writes_json(tmp_path, root):
    """`python -m lab.review --only NAME --json FILE`: a table, the verdict, exit status 0; the file has the evidence."""
    file = tmp_path / "out.json"
    command = [
        sys.executable,
        "-m",
        "lab.review",
        "--only",
        "matmul: mm 10x511x512",
        "--json",
        str(file),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "AS PROMISED" in done.stdout and "vary from run to run" in done.stdout
    written = json.loads(file.read_text())
    cases = [f"matmul: mm 10x511x512 [{dtype}]" for dtype in ("bfloat16", "float32", "float64")]
    seen = {"source": "battery", "runs": "equal", "threads": "equal", "cases": cases}
    assert written["overloads"]["aten::mm"] == seen
    assert written["exit"] == 0 and len(written["rows"]) == 3
