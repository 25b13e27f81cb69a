"""The aten ops behind a name that a person types: `torch.stft`, `Tensor.cumsum`, `F.cross_entropy`."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from samebits.determinism._reviewed_schemas import not_reviewed
from samebits.determinism.table._overload_facts import reviewed

FILE = Path(__file__).with_name("torch_names.toml")


def ops_of(name: str) -> tuple[str, ...]:
    """Returns the aten ops (without overload) that `name` stands for; empty if no op has this name.

    Args:
        name: of a function, method, module or op, with or without what stands before it: `torch.linalg.inv`,
            `Tensor.sum_`, `torch.nn.CrossEntropyLoss`, `aten::mm`. Case and underscores do not matter.

    Example:
        >>> from samebits.determinism import table
        >>> table.ops_of("torch.nn.functional.cross_entropy"), table.ops_of("nn.BatchNorm2d")
        (('cross_entropy_loss',), ('batch_norm',))
    """
    full = name.removeprefix("aten::")
    if full in reviewed().rows or full in known_ops():
        return (full.partition(".")[0],)
    packets = _packets()
    for key in _keys(name):
        if key in _written_in_python():
            return tuple(_written_in_python()[key])
        if key in packets:
            return (packets[key],)
    return ()


def names_near(name: str) -> list[str]:
    """Returns ops with a similar name, at most three."""
    return difflib.get_close_matches(name.rpartition(".")[2].removeprefix("aten::"), sorted(known_ops()))


@cache
def known_ops() -> frozenset[str]:
    """Returns the names of all ops, those of the running torch too, without `aten::` and overload."""
    new = (full.removeprefix("aten::") for full in not_reviewed())
    return frozenset(row.partition(".")[0] for row in (*reviewed().rows, *new))


def _keys(name: str) -> Iterator[str]:
    """Yields the names to look for, the longest first: of `torch.nn.BatchNorm2d` batchnorm2d, batchnorm."""
    outer, _, last = name.rpartition(".")
    parts = [part for part in name.split(".") if part not in _OUTER] or [name]
    is_torchs = all(part in _OUTER | _INNER for part in outer.split(".") if part) or "." not in outer
    for text in dict.fromkeys(("".join(parts), last) if is_torchs else ("".join(parts),)):
        key = _plain(text).removeprefix("lazy")
        yield key
        for ending in (r"[123]d$", r"loss$"):
            if re.search(ending, key):
                yield re.sub(ending, "", key)


_OUTER = frozenset({"torch", "Tensor", "nn", "functional", "F", "ops", "aten", "modules", "default"})
_INNER = frozenset({"linalg", "fft", "special", "masked", "signal", "windows", "sparse", "utils", "rnn"})
"""Parts of torch whose functions are ops, with or without the part in the op's name."""


def _plain(text: str) -> str:
    return text.replace("_", "").replace(":", "").lower()


@cache
def _packets() -> Mapping[str, str]:
    """Returns each op by its name without underscores: `sum` before `sum_`, `softmax` before `_softmax`."""
    ranked = sorted(known_ops(), key=lambda op: (op.startswith("_"), op.endswith("_"), op))
    found: dict[str, str] = {}
    for op in ranked:
        found.setdefault(_plain(op), op)
    return found


@cache
def _written_in_python() -> Mapping[str, list[str]]:
    return tomllib.loads(FILE.read_text(encoding="ascii"))
