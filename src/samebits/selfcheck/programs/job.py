"""A training run in a separate process: its task, its start, and its results."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from samebits.errors import VerifyError

RESULT_PREFIX = "samebits-told "
"""The prefix of the line of JSON that a process prints."""


@dataclass(frozen=True)
class TrainingJob:
    """The training of one process."""

    task: str = "transformer"
    """"transformer" or "convnet"."""
    device: str = "cuda"
    dtype: str = "float32"
    """The dtype, without TensorFloat-32; "bfloat16" by autocast."""
    steps: int = 20
    timed: int = 0
    """Steps that follow and are timed."""
    seed: int = 1
    switch: bool = True
    small: bool = False
    dropout: float = 0.1
    compiled: str = ""
    """The mode of torch.compile; empty: not compiled."""
    run_dir: str = ""
    """With it, the loop is that of a `samebits.Run` that commits at each step."""
    kill_at: int = -1
    """The process kills itself after the optimizer of this step."""
    backend: str = ""
    """With it, the model is a DistributedDataParallel."""

    def description(self) -> str:
        """The job in a few words."""
        switch = "" if self.switch else "without the switch"
        return " ".join(filter(None, (self.task, self.dtype, self.compiled, self.backend, switch)))


def run_in_fresh_processes(
    job: TrainingJob, limit_s: float, environment: Mapping[str, str] | None = None, *, ranks: int = 1
) -> list[dict[str, Any]]:
    """Returns the results of the job's processes, one for each rank. Raises `VerifyError` where one fails, or takes too
    long.
    """
    port = _free_port()
    own = environment or {}
    processes = [_start(job, rank, {**own, **_rendezvous(rank, ranks, port)}) for rank in range(ranks)]
    try:
        outputs = [process.communicate(timeout=limit_s)[0] for process in processes]
    except subprocess.TimeoutExpired:
        raise VerifyError(f"{job.description()} took more than {limit_s:g} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    codes = [process.returncode for process in processes]
    if job.kill_at >= 0:
        if codes != [-signal.SIGKILL] * ranks:
            raise VerifyError(
                f"{job.description()} was to be killed, and ended with {codes}: {_last_lines(outputs)}"
            )
        return []
    if any(codes):
        raise VerifyError(f"{job.description()} ended with {codes}: {_last_lines(outputs)}")
    return [_parse_results(output) for output in outputs]


def run_killed_and_resumed(
    job: TrainingJob, folder: Path, kill_at: int, limit_s: float, *, ranks: int = 1
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the results of an uninterrupted run, and of one that is killed in a step and started again."""
    whole = run_in_fresh_processes(replace(job, run_dir=str(folder / "whole")), limit_s, ranks=ranks)
    cut = replace(job, run_dir=str(folder / "killed"))
    run_in_fresh_processes(replace(cut, kill_at=kill_at), limit_s, ranks=ranks)
    return whole, run_in_fresh_processes(cut, limit_s, ranks=ranks)


def _start(job: TrainingJob, rank: int, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Starts a process in this process's group: the signal that ends the group ends it, too."""
    command = [sys.executable, "-m", "samebits.selfcheck.programs.train", json.dumps(asdict(job))]
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _rendezvous(rank: int, ranks: int, port: int) -> dict[str, str]:
    return {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo",
    }  # fmt: skip


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def _parse_results(output: str) -> dict[str, Any]:
    lines = [line for line in output.splitlines() if line.startswith(RESULT_PREFIX)]
    if not lines:
        raise VerifyError(f"a training process printed no results: {output.strip()[-300:]}")
    return json.loads(lines[-1].removeprefix(RESULT_PREFIX))


def _last_lines(outputs: list[str]) -> str:
    """Returns the last lines for an error; all of it goes to the report's output.txt."""
    print(*outputs, sep="\n")
    return " | ".join(" / ".join(output.strip().splitlines()[-2:]) for output in outputs)
