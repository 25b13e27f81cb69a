"""The battery's own cases: lines of battery.txt, and programs (compiled graphs, training steps)."""

from __future__ import annotations

from pathlib import Path

from lab.catalogue import compiled, training
from lab.catalogue.case import ReviewCase
from lab.catalogue.reader import read

BATTERY: tuple[ReviewCase, ...] = (
    *compiled.CASES,
    *training.CASES,
    *read(Path(__file__).with_name("battery.txt").read_text(encoding="utf-8")),
)
