"""The scripts of the tree's own examples/, shortened: losses, digests of each step, final weights, what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from runs import recorded, samebits_command
from safetensors.torch import load_file

Facts = Iterator[tuple[str, Any]]
TREE_OWN = ("scripts", "environment")
"""Keys of a record that hold digests of the script itself, which may change where a name does."""


def _example(name: str, tree: Path, *options: str) -> Facts:
    script = str(tree / "examples" / f"{name}.py")
    yield "printed", samebits_command("run", "--record", "rec", script, *options, "--run-dir", "run")
    yield from recorded("record", Path("rec") / "record.jsonl", *TREE_OWN)
    samebits_command("commits", "run", "--export", "newest", "model.safetensors")
    yield "final/model", load_file("model.safetensors")
    *_, newest = sorted(Path("run/commits").iterdir())
    yield "final/state", json.loads((newest / "manifest.json").read_text())["tensors"]


def digits(tree: Path) -> Facts:
    """Three epochs, loaded by two workers."""
    yield from _example("digits", tree, "--epochs", "3", "--workers", "2")


def trainer(tree: Path) -> Facts:
    """Three epochs."""
    yield from _example("trainer", tree, "--epochs", "3")


def language_model(tree: Path) -> Facts:
    """One epoch of a text of its own: that of the default depends on Python's version. And the verdicts of examples/replica."""
    Path("text.txt").write_text(" ".join(f"{number * number} squares {number}." for number in range(3000)))
    yield from _example("language_model", tree, "--epochs", "1", "--text", "text.txt")
    for script in sorted((tree / "examples" / "replica").glob("*.py")):
        command = [sys.executable, str(script)]
        yield (
            f"replica/{script.stem}",
            subprocess.run(command, capture_output=True, text=True, check=True).stdout,
        )


SECTIONS = {"digits": digits, "trainer": trainer, "language_model": language_model}
