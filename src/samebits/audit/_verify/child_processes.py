"""Child processes of a check: each in its own session, with a time limit, and never left running."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from samebits.audit._verify import reaper
from samebits.errors import VerifyError

T = TypeVar("T")


LONGEST_TMPDIR = 40
"""A UNIX socket's path has at most 107 characters.

Python's loader workers open some below TMPDIR, in folders of their own; where the path is longer, their batch
is lost, and the training waits for it forever.
"""


@dataclass(frozen=True)
class ExitedProcess:
    """The end of a child process; `returncode` is minus the signal when a signal ended it."""

    returncode: int
    seconds: float
    log: Path
    timed_out: bool = False

    def tail(self, lines: int, before: re.Pattern[str] | None = None) -> str:
        """Returns the last printed lines, without empty ones; `before` a line that begins so."""
        printed = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        if before is not None:
            printed = list(itertools.takewhile(lambda line: not before.match(line), printed))
        return "\n".join(printed[-lines:]) or "(it printed nothing)"


class SignalledError(Exception):
    """Raised when signal `number` ended this process; its children are gone."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextlib.contextmanager
def scratch_folder(*, keep: bool = False, outside: Path | None = None) -> Iterator[Path]:
    """Makes an empty folder for a check. When the block, or this process, ends, so do the children in it.

    It is not inside `outside`. Raises `VerifyError` when every folder for temporary files is.
    """
    folder = tempfile.mkdtemp(prefix="samebits-", dir=_temporary(outside))
    command = [sys.executable, "-I", "-S", reaper.__file__, folder, "keep" if keep else "remove"]
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield Path(folder)
    finally:
        watcher.communicate()


def _temporary(outside: Path | None) -> str:
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"):  # noqa: S108
        real = Path(os.path.realpath(place))
        is_inside = outside is not None and real.is_relative_to(outside)
        if len(place) <= LONGEST_TMPDIR and not is_inside and os.access(real, os.W_OK):
            return place
    raise VerifyError(
        f"verify: {outside} holds every folder for temporary files; "
        "start verify from the script's own folder."
    )


async def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    limit_s: float | None,
    folder: Path | None = None,
) -> ExitedProcess:
    """Runs `command` in `folder` to its end, in a session of its own, with its output and errors in `log`.

    When it ends, is cancelled or takes more than `limit_s` seconds, its whole process group is killed: a
    killed training run leaves its loader workers running.
    """
    begin = time.monotonic()
    with log.open("wb") as output:
        child = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    timed_out = False
    try:
        await asyncio.wait_for(child.wait(), limit_s)
    except TimeoutError:
        timed_out = True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        returncode = await _wait_for_killed(child)
    return ExitedProcess(returncode, time.monotonic() - begin, log, timed_out)


async def _wait_for_killed(child: asyncio.subprocess.Process) -> int:
    """Waits for a killed child, even if cancelled: else the event loop closes first, and complains."""
    cancelled = None
    while child.returncode is None:
        try:
            await child.wait()
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return child.returncode


def run_until_signalled(work: Coroutine[Any, Any, T]) -> T:
    """Runs `work` in an event loop; SIGINT, SIGTERM and SIGHUP cancel it and raise `SignalledError`."""
    return asyncio.run(_cancel_on_signals(work))


async def _cancel_on_signals(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    received: list[int] = []

    def cancel(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, cancel, number)
    try:
        return await task
    except asyncio.CancelledError:
        if received:
            raise SignalledError(received[0]) from None
        raise
