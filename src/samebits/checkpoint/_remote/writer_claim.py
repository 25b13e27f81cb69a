"""The process that writes a run directory at a URL: the one that has opened it last.

No clock is compared, nothing is waited for or renewed. What this promises: each commit at the URL is whole,
none that was uploaded is lost, and of two processes the earlier gets an error before its next commit would
count. What it does not: where the later one opens the directory between the earlier one's look and its write,
that one commit, whole and of the same run, is added still.
"""

from __future__ import annotations

import io
import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from samebits.checkpoint._remote.fsspec_files import FsspecFiles
from samebits.checkpoint._writer.commit_folder import write_file
from samebits.errors import RunDirectoryError

WRITER = "writer.json"
LIMIT = 4096
_ID = "staging-id"
"""In the staging folder: the id by which `writer.json` names it."""


class WriterClaim:
    """Names the process that opened a run directory last: `take` it, `check` it before each commit, `end` it.

    `staging`: the folder of this machine where the commits are made, locked by this process or by none.
    """

    def __init__(self, files: FsspecFiles, staging: Path) -> None:
        self._files, self._staging = files, staging
        self._facts: dict[str, Any] = {}

    def take(self) -> bool:
        """Names this process; returns True if the one before used this staging folder, and had settled it."""
        found, staging = self._read() or {}, self._staging_id()
        ours = found.get("staging") == staging
        if not ours and is_open(found):
            print(
                f"samebits: {self._opened_text(found)} and has not closed it. This process takes over. If "
                "the other still runs, its next commit is an error",
                file=sys.stderr,
            )
        self._facts = {
            "id": uuid4().hex,
            "staging": staging if ours else None,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),
            "ended": False,
        }
        self._write()
        return ours

    def check(self) -> None:
        """Raises RunDirectoryError when another process has opened the directory, or it was removed."""
        found = self._read()
        if found is None:
            raise RunDirectoryError(
                f"run directory {self._files.url} was removed (its {WRITER} is gone). Run again: it starts "
                "at the first step."
            )
        if found.get("id") != self._facts["id"]:
            raise RunDirectoryError(
                f"{self._opened_text(found)}: two processes cannot write one run; end one of them."
            )

    def settle(self) -> None:
        """Notes that the staging folder holds nothing that the run has gone on without. Raises as `end`."""
        self._update(staging=self._staging_id())

    def end(self) -> None:
        """Notes that this process has left the directory. Raises RunDirectoryError if it is another's now."""
        self._update(ended=True)

    def check_free(self) -> None:
        """Raises RunDirectoryError when a process that may still run has opened the directory."""
        found = self._read() or {}
        if is_open(found) and found.get("staging") != self._staging_id():
            raise RunDirectoryError(
                f"{self._opened_text(found)} and has not closed it. Wait until it ends or stop it; if it was "
                f"killed, start it again, or remove {self._files.url}/{WRITER}."
            )

    def _read(self) -> dict[str, Any] | None:
        try:
            return _parse(self._files.read(WRITER, LIMIT))
        except FileNotFoundError:
            return None

    def _update(self, **facts: Any) -> None:
        self.check()
        self._facts.update(facts)
        self._write()

    def _write(self) -> None:
        self._files.write(WRITER, io.BytesIO(json.dumps(self._facts).encode()))

    def _staging_id(self) -> str:
        path = self._staging / _ID
        if not path.exists():
            new = path.with_suffix(".new")
            new.unlink(missing_ok=True)
            write_file(new, [memoryview(uuid4().hex.encode())])
            new.replace(path)
        return path.read_text()

    def _opened_text(self, facts: dict[str, Any]) -> str:
        process, host, since = (ascii(facts.get(name, "?")) for name in ("pid", "host", "since"))
        return f"process {process} on host {host} has opened {self._files.url} since {since}"


def is_open(facts: dict[str, Any]) -> bool:
    """Returns True if a process has opened the directory and not left it; it may have been killed."""
    return bool(facts) and not facts.get("ended")


def _parse(text: bytes) -> dict[str, Any]:
    """Returns the fields; none where the text was cut off by a kill."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
