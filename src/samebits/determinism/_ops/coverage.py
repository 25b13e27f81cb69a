"""The overloads that `across="machines"` covers: by our kernel, or a reason to keep torch's; others raise."""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import torch

from samebits.determinism._dispatcher import kernels
from samebits.determinism.table._class_rules import RULES as RULES
from samebits.determinism.table._class_rules import rule_of
from samebits.determinism.table._overload_facts import OverloadRow, reviewed
from samebits.errors import ConflictError

COVERED, REFUSAL_WORDS = (Path(__file__).with_name(it) for it in ("covered.toml", "refusal_words.toml"))

EXACT, OURS, COMPOSED, DENIED = "exact", "ours", "composed", "refused"
"""torch's kernel, whose results no machine could change | a kernel of ours | made of other ops | raises."""
REAL, INTEGERS = "real", "integers"
"""Types for which torch's kernel stays: all but complex numbers | where no argument is of floating point."""


@dataclass(frozen=True)
class Coverage:
    """The state of one overload under `across="machines"`, and why."""

    kind: str
    reason: str
    types: str = ""
    """`real` or `integers`: torch's kernel stays for these types alone. Empty: for all."""


LAYOUTS = ("SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU", "NestedTensorCPU")
"""Dispatch keys of tensors that are not dense: no arithmetic of theirs is covered."""
_EXPLICIT = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_REFUSED = Coverage(DENIED, "no kernel here has the same bits on every machine")
_GENERATED = Coverage(COMPOSED, "a form that torch generates: calls the functional form, and copies")
_COMPOSITE = Coverage(COMPOSED, "calls other ops through the dispatcher, which are covered or refused")


@cache
def _read(file: Path) -> Mapping[str, Any]:
    return tomllib.loads(file.read_text(encoding="ascii"))


def groups() -> list[Mapping[str, Any]]:
    """Returns the groups of the list of covered ops."""
    return _read(COVERED)["group"]


def refusal_groups() -> list[Mapping[str, Any]]:
    """Returns the families of refused ops: `family`, `ops`, and `reason` with what to use instead."""
    return _read(REFUSAL_WORDS)["refused"]


def refusal_group(full: str) -> Mapping[str, Any]:
    """Returns the family of a refused overload (full name), with empty `family` and `reason` if unknown."""
    name = full.removeprefix("aten::").partition(".")[0].rstrip("_")
    found = (one for one in refusal_groups() if any(fnmatchcase(name, op) for op in one["ops"]))
    return next(found, {"family": "", "reason": ""})


def refusal_reason(full: str) -> str:
    """Returns the reason why an overload (full name) is refused and what to do instead; empty if unknown."""
    return refusal_group(full)["reason"]


def refused_for(what: str) -> Mapping[str, Any]:
    """Returns the ops that raise for `complex` numbers or `some` arguments, and composites that do not."""
    return _read(REFUSAL_WORDS)[what]


@cache
def _by_name() -> dict[str, Coverage]:
    """Returns what the groups say of each op or overload; the first that names it counts."""
    found: dict[str, Coverage] = {}
    for group in groups():
        coverage = Coverage(EXACT, group["reason"], group.get("types", ""))
        for name in group.get("ops", ()):
            found.setdefault(name, coverage)
    return found


def _named(name: str) -> Coverage | None:
    named = _by_name()
    patterns = (pattern for pattern in named if "*" in pattern)
    return named.get(name) or next((named[one] for one in patterns if fnmatchcase(name, one)), None)


@cache
def _by_class() -> dict[str, Coverage]:
    return {name: Coverage(EXACT, group["reason"]) for group in groups() for name in group.get("classes", ())}


def of_torch(row: OverloadRow, functional: OverloadRow) -> Coverage:
    """Returns the coverage of an overload without a kernel of ours; it follows the form `functional`."""
    for name in (functional.name, functional.name.partition(".")[0], row.name):
        if (named := _named(name)) is not None:
            return named
    by_class = _by_class().get(rule_of(row, functional).name)
    if by_class is not None:
        return by_class
    if "composite" in row.kernels:
        return _COMPOSITE
    return _GENERATED if row.generated else _REFUSED


def stays(full: str) -> bool:
    """Returns True if an overload (full name) has the same bits everywhere without the mode, in all types."""
    rows = reviewed().rows
    row = rows.get(full.removeprefix("aten::"))
    covered = None if row is None else of_torch(row, rows[row.form_of])
    return covered is not None and covered.kind == EXACT and not covered.types


def refusals(ours: frozenset[tuple[str, str]]) -> Iterator[tuple[str, str, Coverage]]:
    """Yields the refusals in front of torch's kernels: full name, dispatch key and coverage.

    `ours`: the overloads, with dispatch key, that have a kernel of ours.
    """
    return (one for one in _without_ours() if one[:2] not in ours)


@cache
def _without_ours() -> list[tuple[str, str, Coverage]]:
    return list(_find_refusals())


def _find_refusals() -> Iterator[tuple[str, str, Coverage]]:
    rows = reviewed().rows
    for full in sorted({*kernels("CPU"), *(full for key in _EXPLICIT for full in kernels(key))}):
        row = rows.get(full.removeprefix("aten::"))
        if row is None:
            continue
        coverage = of_torch(row, rows[row.form_of])
        if coverage.kind == DENIED or coverage.types:
            yield full, "CPU", coverage
    for key in LAYOUTS:
        for full in kernels(key):
            row = rows.get(full.removeprefix("aten::"))
            if row is not None and not _stays(row, rows[row.form_of], key):
                yield full, key, _REFUSED


def _stays(row: OverloadRow, functional: OverloadRow, layout: str) -> bool:
    """Returns True if torch's kernel for a layout that is not dense stays."""
    name = functional.name.partition(".")[0]
    sparse = layout.startswith("Sparse") and name in _read(COVERED)["sparse"]["ops"]
    return sparse or rule_of(row, functional).name in _by_class()


# The machines of the promise: x86-64 with AVX2 and FMA, whose vector kernels torch then uses, too.


CAPABILITIES = ("AVX2", "AVX512")
"""Values of `torch.backends.cpu.get_cpu_capability()`; a lesser one's kernels draw other normal numbers."""


def has_vectors() -> bool:
    """Returns True if the CPU, and torch's settings, have what our kernels and torch's are the same with."""
    is_x86 = platform.machine() in {"x86_64", "AMD64"}
    return not is_x86 or torch.backends.cpu.get_cpu_capability() in CAPABILITIES


def check() -> None:
    """Raises `ConflictError` on a machine, or with settings, for which the mode promises nothing."""
    if not has_vectors():
        found = torch.backends.cpu.get_cpu_capability()
        raise ConflictError(
            f'enable_op_determinism(across="machines"): torch uses its kernels for {found!r} here, and the '
            "same bits are promised for x86-64 with AVX2 and FMA. Unset ATEN_CPU_CAPABILITY, or use a CPU "
            "that has them."
        )
