"""Each kernel of `across="threads"` through torch's public functions, over shapes, dtypes, layouts, and 1 and 3 threads."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import elementwise
import matrices
import networks
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import samebits
from samebits.determinism._all_replacements import REPLACEMENTS

Facts = Iterator[tuple[str, Any]]
FAMILIES: dict[str, Callable[[], Iterator[tuple[str, Callable[[], Any]]]]] = {
    "pointwise": elementwise.pointwise,
    "reductions": elementwise.reductions,
    "losses": elementwise.losses,
    "indexing": elementwise.indexing,
    "products": matrices.products,
    "linalg": matrices.linalg,
    "fourier": matrices.fourier,
    "convolutions": networks.convolutions,
    "normalizations": networks.normalizations,
    "attention": networks.attention,
    "recurrent": networks.recurrent,
}
THREADS = (1, 3)
BELOW = {"_cholesky_solve_helper", "_convolution", "_ctc_loss", "_linalg_eigvals"}
"""Ops that torch's own kernels call (those of cholesky_solve, convolution, ctc_loss, eigvals), where no mode sees them."""


def _family(name: str, tree: Path) -> Facts:
    warnings.simplefilter("ignore")
    samebits.set_random_seed(1)
    samebits.enable_op_determinism(across="threads")
    for case, run in FAMILIES[name]():
        for threads in THREADS:
            torch.set_num_threads(threads)
            yield f"{case}/{threads}", run()


class _Calls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.add(func.name().removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


def covered(tree: Path) -> Facts:
    """The repaired ops of torch's that the families call; it fails where one is missing. (Our own: `machines`.)"""
    warnings.simplefilter("ignore")
    samebits.set_random_seed(1)
    samebits.enable_op_determinism(across="threads")
    with _Calls() as calls:
        for family in FAMILIES.values():
            for case, run in family():
                if not case.endswith(("bfloat16", "float16", "float64")):
                    run()
    own = sorted({it.op.removeprefix("aten::") for it in REPLACEMENTS})
    if missing := [op for op in own if op not in calls.seen | BELOW and not _is_out(op)]:
        raise SystemExit(f"golden: no fact calls {', '.join(missing)}: add one to tools/golden")
    for op in sorted({*own} & calls.seen):
        yield op, True


def _is_out(op: str) -> bool:
    name, _, overload = op.partition(".")
    schema = getattr(getattr(torch.ops.aten, name), overload or "default")._schema
    return any(argument.is_out for argument in schema.arguments)


def table(tree: Path) -> Facts:
    """The rows of the op table, by device and verdict."""
    rows = _table()
    for device, verdict in sorted({(row["device"], row["verdict"]) for row in rows}):
        yield (
            f"{device}/{verdict}",
            [row for row in rows if (row["device"], row["verdict"]) == (device, verdict)],
        )


def _table() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "samebits", "ops", "--all", "--json", "ops.json"]
    subprocess.run(command, check=True, capture_output=True)
    return json.loads(Path("ops.json").read_text())["ops"]


SECTIONS = {name: partial(_family, name) for name in FAMILIES} | {"covered": covered, "table": table}
