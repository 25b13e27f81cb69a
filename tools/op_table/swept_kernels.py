"""The code of our kernels when `sweep.py` last measured: a digest for each file, in `swept.json`."""

from __future__ import annotations

import ast
import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import samebits

FILE = Path(__file__).with_name("swept.json")
FOLDERS = ("_native", "arithmetic", "determinism/_kernels", "determinism/_ops")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Python's syntax trees differ from version to version, and so do the digests."""


def kernel_digests(package: Path = Path(samebits.__file__).parent) -> dict[str, Any]:
    """Returns the digest of each file with kernels, by its path in the package. Comments and docstrings do not count."""
    files = sorted(file for folder in FOLDERS for file in (package / folder).rglob("*.py"))
    return {"python": PYTHON, "files": {str(file.relative_to(package)): _digest(file) for file in files}}


def changed_since(swept: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Returns the files whose code is another one, new or gone."""
    before, after = swept["files"], now["files"]
    return sorted(name for name in {*before, *after} if before.get(name) != after.get(name))


def swept_kernels() -> dict[str, Any]:
    """Returns the digests of the last whole sweep."""
    found: dict[str, Any] = json.loads(FILE.read_text("ascii"))
    return found


def write_swept_kernels(digests: Mapping[str, Any]) -> None:
    """Keeps the digests of a whole sweep."""
    FILE.write_text(json.dumps(digests, indent=1) + "\n", "ascii")


def _digest(file: Path) -> str:
    tree = ast.parse(file.read_text("ascii"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:12]


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is a docstring, of a module, function, class or constant."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
