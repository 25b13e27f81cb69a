"""The rolling digest of a run: of its positions, losses, and batches if the loader keeps their digest.

Equal digests at a step mean equal runs up to it, so two runs are compared in O(1), and their first difference
is found by bisection over `run_dir/chain.jsonl`: one line for each of the first 256 steps, then 128 for each
doubling. The steps that have a line depend on their number alone, not on commits or kills.
"""

from __future__ import annotations

import json
import os
import struct
from bisect import bisect_left
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash

from samebits._context import Position
from samebits.checkpoint._reading import open_regular
from samebits.checkpoint._run_directory import open_own_file
from samebits.errors import CorruptCommitError, RecordError, RunDirectoryError

FILE = "chain.jsonl"
_PER_DOUBLING = 7
"""Lines per doubling of the step, as a power of two."""
_MAX_BYTES = 1 << 23
"""The lines of 2^63 steps take less than 1 MB."""


class DigestChain:
    """A rolling digest that advances at each boundary of the outermost loop, once per position."""

    def __init__(self) -> None:
        self._rolled = 0
        self._at: tuple[str, int] | None = None
        self._losses: list[float] = []
        self._file: int | None = None
        self._path = Path(FILE)
        self._check = 0

    @property
    def digest(self) -> str:
        """The digest of the run up to the last boundary."""
        return f"xxh3-64:{self._rolled:016x}"

    def loss(self, value: Any) -> None:
        """Adds a loss of the step under way. One on a GPU is left out: reading it would wait for it."""
        if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
            self._losses.append(float(value))

    def boundary(self, position: Position, batches: int) -> None:
        """Ends the step before `position`; `batches` is its loader's own rolling digest."""
        if self._at == (position.loop, position.step):  # where the run resumed, or after another loop
            return
        self._at = position.loop, position.step
        losses, self._losses = self._losses, []
        data = struct.pack(
            f"<4Q{len(losses)}d", position.step, position.epoch, position.batch_index, batches, *losses
        )
        self._rolled = xxhash.xxh3_64_intdigest(position.loop.encode() + data, self._rolled)
        if self._file is not None and position.step % stride(position.step) == 0:
            text, self._check = _line(position.step, self.digest, self._check)
            self._write(text)

    def resume(self, digest: str | None, loop: str, step: int) -> None:
        """Resumes from a commit."""
        self._rolled = 0 if digest is None else int(digest.rpartition(":")[2], 16)
        self._at = loop, step

    def open(self, run_dir: Path, step: int) -> None:
        """Writes lines to the folder from now on; those after `step` come again. Raises RunDirectoryError."""
        self._path = path = run_dir / FILE
        try:
            self._file = open_own_file(path)
        except OSError as error:
            raise RunDirectoryError(
                f"{path} cannot be used: {error.strerror}. Remove it and run again."
            ) from error
        with os.fdopen(os.dup(self._file), "rb") as file:
            _, end, self._check = _read(file.read(_MAX_BYTES), step)
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)

    def _write(self, text: bytes) -> None:
        assert self._file is not None
        try:
            while text:  # a disk that is nearly full takes a part
                text = text[os.write(self._file, text) :]
        except OSError as error:
            raise RunDirectoryError(
                f"{self._path} cannot be written: {error.strerror}. Free some space (or raise the limit), "
                "and run again: it resumes from the newest commit."
            ) from error

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class ChainLine(NamedTuple):
    """One line: the digest at the boundary before `step`."""

    step: int
    digest: str


class ChainDifference(NamedTuple):
    """The first difference of two runs, between two boundaries: before `equal`, and before `different`."""

    equal: int
    different: int


def stride(step: int) -> int:
    """Returns the interval in steps between two lines, around `step`."""
    return 1 << max(0, step.bit_length() - 1 - _PER_DOUBLING)


def read_chain(run_dir: str | os.PathLike[str]) -> list[ChainLine]:
    """Returns the valid lines of a run; a tail that a loss of power has cut off or damaged is left out.

    Raises:
        RecordError: there is no chain in the folder.
    """
    try:
        file, _ = open_regular(Path(run_dir) / FILE)
        with file:
            data = file.read(_MAX_BYTES)
    except (OSError, CorruptCommitError) as error:
        raise RecordError(
            f"{os.fspath(run_dir)} has no {FILE} ({error}). Give the run_dir of a samebits.Run."
        ) from error
    return _read(data, None)[0]


def first_difference(
    run_dir: str | os.PathLike[str], other: str | os.PathLike[str]
) -> ChainDifference | None:
    """Returns the first difference of two runs, within a 128th of the step; None: equal as far as both go."""
    mine, theirs = ({link.step: link.digest for link in read_chain(folder)} for folder in (run_dir, other))
    steps = sorted(mine.keys() & theirs.keys())
    # once different, always different
    place = bisect_left(steps, True, key=lambda step: mine[step] != theirs[step])
    if place == len(steps):
        return None
    return ChainDifference(steps[place - 1] if place else 0, steps[place])


def _line(step: int, digest: str, before: int) -> tuple[bytes, int]:
    """Returns a line of JSON, and its check, which covers all lines before it."""
    check = xxhash.xxh3_64_intdigest(f"{step} {digest}".encode(), before)
    return f'{{"step": {step}, "rolling": "{digest}", "check": "{check:016x}"}}\n'.encode(), check


def _read(data: bytes, last: int | None) -> tuple[list[ChainLine], int, int]:
    """Returns the links up to step `last`, the end of the last of them in bytes, and its check."""
    links: list[ChainLine] = []
    end = check = 0
    for line in data.split(b"\n")[:-1]:
        try:
            values = json.loads(line)
            link = ChainLine(int(values["step"]), str(values["rolling"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            break
        text, following = _line(*link, check)
        if text != line + b"\n" or (last is not None and link.step > last):
            break
        links.append(link)
        end, check = end + len(text), following
    return links, end, check
