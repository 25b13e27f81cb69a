"""How a process of a check begins."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Start:
    """Words before its command, the folder it works in (None: this process's), and the script's name there."""

    before: tuple[str, ...]
    folder: Path | None
    script: str
