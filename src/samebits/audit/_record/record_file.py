"""`record.jsonl`: one JSON object per line, one system call for each: SIGKILL cuts at most the last.

Reading executes nothing; a last line that was cut is left out.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samebits._context import VERSION
from samebits._objects.hashes import Leaves
from samebits._objects.rng_states import generators
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
        """Appends a line with each component's digest and leaves; their names only when they changed."""
        leaves = {}
        for component, taken in components.items():
            known = self._names.get(component)
            if known is None or known[0] != taken.names:
                known = self._names[component] = (taken.names, 0 if known is None else known[1] + 1)
                names = {"kind": "names", "component": component, "id": known[1], "names": list(taken.names)}
                self._append(names)
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
    """Returns the folder of this process's record: `folder`, or one in it if a launcher set several ranks."""
    rank, number = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    several = rank.isdecimal() and number.isdecimal() and int(number) > 1
    return folder_of_rank(folder, int(rank)) if several else Path(folder)


def folder_of_rank(folder: str | os.PathLike[str], rank: int) -> Path:
    """Returns the folder of one rank's record below that of a job of several ranks."""
    return Path(folder, f"rank{rank}")


def start_line(script: str, level: str, every: int, seed: int | None = None) -> dict[str, Any]:
    """Returns the first line of a record."""
    return {
        "kind": "start",
        "schema": SCHEMA,
        "argv": sys.argv,
        "script": script,
        "level": level,
        "every": every,
        "cwd": os.getcwd(),
        "seed": seed,
        "environment": environment(),
        "generators": {name: hashed.hex() for name, hashed in generators().by_name().items()},
    }


def _create(folder: Path) -> tuple[Path, int]:
    number = 0
    while True:
        path = folder / (f"record.{number}.jsonl" if number else "record.jsonl")
        try:
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            number += 1


_NAME = re.compile(r"record(?:\.(\d+))?\.jsonl")
_HASH_DIGITS = 16
_POSITION = ("kind", "step", "loop", "epoch", "batch_index", "leaves", "threads")


@dataclass(frozen=True)
class RecordLine:
    """The state after one step's body, or ("initial") before the first body of a process."""

    step: int
    loop: str
    epoch: int
    batch_index: int
    values: dict[str, Any]
    """Component to its digest (for "loss" and "lr" the numbers, as `float.hex`)."""
    leaves: dict[str, dict[str, str]]
    """Component to path to hash, as far as recorded."""

    @property
    def key(self) -> tuple[str, int]:
        return self.loop, self.step


@dataclass(frozen=True)
class Record:
    """One process's record, or several of one run merged."""

    path: Path
    start: dict[str, Any]
    initial: list[RecordLine] = field(default_factory=list)
    steps: dict[tuple[str, int], RecordLine] = field(default_factory=dict)
    """In the order in which they were recorded."""
    forwards: dict[tuple[str, int], RecordLine] = field(default_factory=dict)
    """Lines before any training. If no step follows, they are the steps, those of an inference."""
    end: dict[str, Any] | None = None
    """None if the process was killed before the script's end."""
    killed: dict[str, Any] | None = None
    run_dirs: list[str] = field(default_factory=list)

    @property
    def final(self) -> str | None:
        """The digest of the model at the script's end."""
        return None if self.end is None else self.end.get("final")

    @property
    def notes(self) -> list[str]:
        return [] if self.end is None else list(self.end.get("notes", ()))

    @property
    def resumed_from(self) -> int | None:
        """The boundary from which this process resumed a run; None for a fresh one."""
        # a forward before the run has a line, too
        began = next((line for line in self.initial if line.loop), None)
        return began.step + 1 if began is not None and began.step >= 0 else None


def read_record(path: str | os.PathLike[str]) -> Record:
    """Returns the record in a file or folder (records of several processes are merged, later ones win).

    Raises RecordError where there is none, or it is not a record of this schema.
    """
    return merge_segments(read_segments(path))


def read_ranks(path: str | os.PathLike[str]) -> list[Record]:
    """Returns the record of each rank of a job, or of the only process. Raises as `read_record` does."""
    ranks = [folder_of_rank(path, 0)]
    while ranks[-1].is_dir():
        ranks.append(folder_of_rank(path, len(ranks)))
    return [read_record(folder) for folder in ranks[:-1] or [path]]


def read_segments(path: str | os.PathLike[str]) -> list[Record]:
    """Returns the records of a folder, one per process, in the order in which they were started."""
    path = Path(path)
    if path.is_file():
        return [_read_file(path)]
    matches = [(match, item) for item in _items(path) if (match := _NAME.fullmatch(item.name))]
    files = [item for match, item in sorted(matches, key=lambda pair: int(pair[0][1] or 0))]
    if not files:
        raise RecordError(
            f"{path}: there is no record.jsonl in it. Make one with `samebits run --record {path} SCRIPT`."
        )
    return [_read_file(file) for file in files]


def merge_segments(segments: list[Record]) -> Record:
    steps = {key: line for segment in segments for key, line in segment.steps.items()}
    first, last = segments[0], segments[-1]
    return replace(last, path=first.path, start=first.start, initial=first.initial, steps=steps)


def _items(path: Path) -> list[Path]:
    try:
        return list(path.iterdir())
    except OSError as error:
        raise RecordError(
            f"{path}: cannot read a record: {(error.strerror or str(error)).lower()}. "
            f"Make one with `samebits run --record {path} SCRIPT`."
        ) from error


def _read_file(path: Path) -> Record:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path}: cannot read a record: {error.strerror}") from error
    lines = data.split(b"\n")
    torn = lines.pop()
    if not lines:
        raise RecordError(
            f"{path}: not a record: {'its only line is cut short' if torn else 'the file is empty'}"
        )
    record, names = Record(path, {}), {}
    for number, text in enumerate(lines, 1):
        try:
            record = _add(record, json.loads(text), names)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RecordError(
                f"{path}, line {number}: not a record ({type(error).__name__}: {error})"
            ) from error
    if record.end is not None and not record.end.get("trains"):
        record.steps.update(record.forwards)
    return record


def _add(record: Record, line: dict[str, Any], names: dict[str, dict[int, list[str]]]) -> Record:
    kind = line["kind"]
    if not record.start and (kind != "start" or line.get("schema") != SCHEMA):
        raise ValueError(f"expected a start line of schema {SCHEMA}, found {kind} {line.get('schema')}")
    if kind == "start":
        return replace(record, start=line)
    if kind == "end":
        return replace(record, end=line)
    if kind == "killed":
        return replace(record, killed=line)
    if kind == "names":
        names.setdefault(str(line["component"]), {})[int(line["id"])] = [str(name) for name in line["names"]]
    elif kind == "run":
        record.run_dirs.append(str(line["run_dir"]))
    elif kind == "initial":
        record.initial.append(_line(line, names))
    elif kind in {"step", "forward"}:
        step = _line(line, names)
        (record.steps if kind == "step" else record.forwards)[step.key] = step
    return record


def _line(line: dict[str, Any], names: dict[str, dict[int, list[str]]]) -> RecordLine:
    leaves = {}
    for component, (number, hashes) in line.get("leaves", {}).items():
        paths = names[component][number]
        if len(hashes) != _HASH_DIGITS * len(paths):
            raise ValueError(f"{component}: {len(hashes)} digits for {len(paths)} leaves")
        cut = (hashes[at : at + _HASH_DIGITS] for at in range(0, len(hashes), _HASH_DIGITS))
        leaves[component] = dict(zip(paths, cut, strict=True))
    values = {key: value for key, value in line.items() if key not in _POSITION}
    position = (int(line["step"]), str(line["loop"]), int(line["epoch"]), int(line["batch_index"]))
    return RecordLine(*position, values=values, leaves=leaves)
