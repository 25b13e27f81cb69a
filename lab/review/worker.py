"""Processes that measure cases by name, one JSON line each way, until their input ends; and the handle of one.

`python -m lab.review.worker SETTINGS`: a crash, a hang or a leaked setting of one case stays in here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from lab.catalogue import sources
from lab.review.measure import measure
from samebits.audit._child.launch import die_with_parent
from samebits.determinism import enable_op_determinism
from samebits.random import set_random_seed

_LONGEST_ANSWER = 2**26
_ROOT = Path(__file__).parents[2]
"""The folder that has `lab`."""


class WorkerError(Exception):
    """The worker ended or was ended before it answered; the text says how."""


class ReviewWorker:
    """One process of `lab.review.worker`, started when it is first asked."""

    def __init__(self, settings: Mapping[str, Any], scratch: Path, limit_s: float) -> None:
        self._settings, self._scratch, self._limit_s = settings, scratch, limit_s
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def ask(self, job: str, name: str) -> Any:
        """The worker's answer; `WorkerError` when it crashed or took longer than its limit."""
        process = self._process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps({"job": job, "name": name}).encode() + b"\n")
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), self._limit_s)
        except TimeoutError:
            await self._end()
            raise WorkerError(f"took more than {self._limit_s:.0f} s") from None
        except (BrokenPipeError, ConnectionResetError):
            line = b""
        if not line:
            raise WorkerError(await self._epitaph(process))
        return json.loads(line)["answer"]

    async def _start(self) -> asyncio.subprocess.Process:
        with (self._scratch / "log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lab.review.worker", json.dumps(dict(self._settings))),
                cwd=_ROOT,
                env=_environment(self._scratch),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                limit=_LONGEST_ANSWER,
            )

    async def _epitaph(self, process: asyncio.subprocess.Process) -> str:
        code = await process.wait()
        self._process = None
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        last = (self._scratch / "log").read_text(errors="replace").strip().splitlines()[-1:]
        return f"crashed with {how}" + (f": {last[0][:200]}" if last else "")

    async def _end(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.communicate()  # also closes the pipes, while the event loop is there to do it
            self._process = None


def _environment(scratch: Path) -> dict[str, str]:
    """Threads that wait asleep, since more of them run than there are cores; Inductor as in a new process, in one."""
    kept = {name: value for name, value in os.environ.items() if name != "OMP_THREAD_LIMIT"}
    return {
        **kept,
        "OMP_WAIT_POLICY": "PASSIVE",
        "TORCHINDUCTOR_CACHE_DIR": str(scratch.parent / "inductor"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }


def main() -> None:
    """Answers on what was standard output; what cases print goes to standard error."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    settings = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    set_random_seed(0)
    if settings["switch"]:
        enable_op_determinism(across=settings["across"])
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    jobs: dict[str, Callable[[str], Any]] = {
        "list": lambda source: [case.full_name for case in sources.cases(source)],
        "measure": lambda name: measure(sources.find(name)).to_dict(),
    }
    return {"answer": jobs[asked["job"]](asked["name"])}


if __name__ == "__main__":
    main()
