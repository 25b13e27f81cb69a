"""Worker processes that measure cases, several at a time; one that dies or hangs costs one case, and is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_LONGEST_ANSWER = 2**26


class WorkerError(Exception):
    """The worker ended or was ended before it answered; the text says how."""


class ReviewWorker:
    """One process of `samebits.audit._review.worker`, started when it is first asked."""

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
                *(sys.executable, "-m", "samebits.audit._review.worker", json.dumps(dict(self._settings))),
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
