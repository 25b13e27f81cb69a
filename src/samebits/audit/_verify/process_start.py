"""The start of a process of a check."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Start:
    """The words before its command, the folder it works in (None: this process's), and the script's name there."""

    before: tuple[str, ...]
    folder: Path | None
    script: str
