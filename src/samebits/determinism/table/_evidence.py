"""Evidence of the op table: cases over threads, and the overloads that a GPU has run again and again.

Those had the same bits each time, under the switch: one block per GPU and version of torch in `gpus.toml`;
`tools/op_table/gpu_evidence.py` writes it from a report.
"""

from __future__ import annotations

import csv
import datetime as dt
import textwrap
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

GPU_FILE = Path(__file__).with_name("gpus.toml")
_WIDTH = 110


@dataclass(frozen=True)
class GpuEvidence:
    """The evidence of one GPU with one torch."""

    gpu: str
    torch: str
    date: dt.date
    ops: frozenset[str]
    """Overloads without `aten::` that were dispatched in cases with equal bits, and in none with others."""

    def __str__(self) -> str:
        return f"{self.gpu}, torch {self.torch}, {self.date}"


def read_gpu_evidence(file: Path = GPU_FILE) -> list[GpuEvidence]:
    """Returns the blocks of the file."""
    with file.open("rb") as stream:
        blocks = tomllib.load(stream).get("seen", ())
    return [
        GpuEvidence(one["gpu"], one["torch"], one["date"], frozenset(one["ops"].split())) for one in blocks
    ]


@cache
def gpu_evidence() -> tuple[GpuEvidence, ...]:
    """Returns the blocks of this package."""
    return tuple(read_gpu_evidence())


def record(new: GpuEvidence, file: Path = GPU_FILE) -> None:
    """Writes the block into the file, in place of an older one of the same GPU and torch; comments stay."""
    blocks = {(one.gpu, one.torch): one for one in [*read_gpu_evidence(file), new]}
    head = [line for line in file.read_text("ascii").splitlines() if line.startswith("#")]
    file.write_text("\n".join([*head, *_lines(blocks[key] for key in sorted(blocks))]) + "\n", "ascii")


def _lines(blocks: Iterable[GpuEvidence]) -> Iterable[str]:
    for one in blocks:
        yield from ("", "[[seen]]", f'gpu = "{one.gpu}"', f'torch = "{one.torch}"', f"date = {one.date}")
        yield 'ops = """'
        yield from textwrap.wrap(
            " ".join(sorted(one.ops)), _WIDTH, break_long_words=False, break_on_hyphens=False
        )
        yield '"""'


# Cases that show the same bits of an overload over threads: only cases that could have differed.
#
# One line per overload in `seen.csv`: its name, and at most three names of cases (`make review`), apart by
# ";". `tools/op_table/update.py` writes it.


SEEN_FILE = Path(__file__).with_name("seen.csv")
APART = "; "


@cache
def seen_cases() -> dict[str, tuple[str, ...]]:
    """Returns the cases of each overload, by its name without `aten::`."""
    return read_seen_cases(SEEN_FILE)


def read_seen_cases(path: Path) -> dict[str, tuple[str, ...]]:
    """Reads such a file."""
    with path.open(encoding="ascii", newline="") as file:
        return {line["name"]: tuple(line["cases"].split(APART)) for line in csv.DictReader(file)}
