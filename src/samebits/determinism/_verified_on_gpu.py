"""The CUDA formulations that a GPU has run, from their data file; others are not used. Loads no code."""

from __future__ import annotations

import datetime as dt
import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = Path(__file__).parent / "_cuda_decompositions" / "verified.toml"


@dataclass(frozen=True)
class GpuVerification:
    """One overload on one GPU: equal bits over twenty runs, values as on the CPU in float64."""

    op: str
    gpu: str
    date: dt.date
    torch: str
    ratio: float
    """Our time over torch's nondeterministic kernel's."""

    def __str__(self) -> str:
        return f"{self.gpu}, torch {self.torch}, {self.date}, {self.ratio:.2f}x torch's time"


def read(file: Path = FILE) -> list[GpuVerification]:
    """Returns the entries of the file, in its order."""
    with file.open("rb") as stream:
        return [GpuVerification(**entry) for entry in tomllib.load(stream).get("verified", ())]


def verification_text(op: str, entries: Iterable[GpuVerification]) -> str:
    """Returns the op table's text for the overload; empty when no GPU has run it."""
    return "; ".join(str(entry) for entry in entries if entry.op == op)


def record(
    new: Iterable[GpuVerification], file: Path = FILE, *, failed: Iterable[tuple[str, str]] = ()
) -> None:
    """Writes the new entries into the file, in place of older ones of the same overload and GPU.

    Comments stay. Older entries of (overload, GPU) in `failed` are removed.
    """
    entries = {(e.op, e.gpu): e for e in [*read(file), *new]}
    for key in failed:
        entries.pop(key, None)
    head = [line for line in file.read_text("utf-8").splitlines() if line.startswith("#")]
    blocks = [_block(entries[key]) for key in sorted(entries)]
    file.write_text("\n".join([*head, *blocks]) + "\n", "utf-8")


def _block(entry: GpuVerification) -> str:
    values = asdict(entry) | {"ratio": round(entry.ratio, 3)}
    lines = [f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in values.items()]
    return "\n".join(["", "[[verified]]", *lines])
