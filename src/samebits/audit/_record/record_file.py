"""`record.jsonl`: one JSON object per line, each written with one system call, so that SIGKILL cuts at most the last."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samebits._context import VERSION
from samebits._inspect.rng_states import generators
from samebits._inspect.tree import Leaves
from samebits.determinism import environment_fingerprint
from samebits.errors import RecordError

SCHEMA = 1


def environment() -> dict[str, Any]:
    """Returns the versions and settings of this process, for a person and for comparison."""
    return {
        **environment_fingerprint(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "samebits": VERSION,
        "hashseed": os.environ.get("PYTHONHASHSEED"),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


class RecordFile:
    """A new record in `folder`: `record.jsonl`, or `record.1.jsonl` and so on if there are some already."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._names: dict[str, tuple[tuple[str, ...], int]] = {}
        try:
            os.makedirs(folder, exist_ok=True)
            self.path, self._descriptor = _create(Path(folder))
        except OSError as error:
            raise RecordError(f"cannot write a record in {os.fspath(folder)}: {error.strerror}") from error

    def write(self, line: dict[str, Any], *, durable: bool = False) -> None:
        """Appends one line; `durable` waits until it is on the disk."""
        self._append(line)
        if durable:
            os.fsync(self._descriptor)

    def write_components(self, line: dict[str, Any], components: dict[str, Leaves]) -> None:
        """Appends a line with the digest and the leaves of each component; their names only when they changed."""
        leaves = {}
        for component, taken in components.items():
            known = self._names.get(component)
            if known is None or known[0] != taken.names:
                known = self._names[component] = (taken.names, 0 if known is None else known[1] + 1)
                self._append(
                    {"kind": "names", "component": component, "id": known[1], "names": list(taken.names)}
                )
            line[component] = taken.digest()
            leaves[component] = [known[1], taken.hashes.hex()]
        if leaves:
            line["leaves"] = leaves
        self._append(line)

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        while data:  # a signal may cut a write short
            data = data[os.write(self._descriptor, data) :]

    def close(self) -> None:
        """Closes the file; its lines are written already."""
        os.close(self._descriptor)


def folder_of_process(folder: str | os.PathLike[str]) -> Path:
    """Returns the folder of this process's record: `folder`, or one below it where a launcher has set several ranks."""
    rank, number = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    several = rank.isdecimal() and number.isdecimal() and int(number) > 1
    return folder_of_rank(folder, int(rank)) if several else Path(folder)


def folder_of_rank(folder: str | os.PathLike[str], rank: int) -> Path:
    """Returns the folder of one rank's record below that of a job of several ranks."""
    return Path(folder, f"rank{rank}")


def start_line(script: str, level: str, every: int) -> dict[str, Any]:
    """Returns the first line of a record."""
    return {
        "kind": "start",
        "schema": SCHEMA,
        "argv": sys.argv,
        "script": script,
        "level": level,
        "every": every,
        "environment": environment(),
        "generators": _hex(generators()),
    }


def _hex(taken: Leaves) -> dict[str, str]:
    """Returns name to hash: the states of the generators before the script began."""
    digits = taken.hashes.hex()
    return {name: digits[16 * at : 16 * at + 16] for at, name in enumerate(taken.names)}


def _create(folder: Path) -> tuple[Path, int]:
    number = 0
    while True:
        path = folder / (f"record.{number}.jsonl" if number else "record.jsonl")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            number += 1
