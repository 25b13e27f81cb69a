"""The names and schemas of the reviewed overloads alone, read in some milliseconds.

The switch reads nothing else of the table: a kernel of ours is for the schema it was written for, and the
determinism of an overload that was not reviewed is unknown.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import torch

from samebits.determinism._dispatcher import has_kernel
from samebits.determinism._environment import TESTED_TORCH, UntestedVersionWarning, running_version
from samebits.determinism._replacement import Replacement
from samebits.determinism._warn_once import warn_once

FILES = tuple(Path(__file__).parent / "table" / name for name in ("snapshot.csv", "versions.csv"))
"""The pinned version's table, and other versions' differences; lines begin with name and schema."""

_EXPLICIT = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")


def schema_digest(schema: str) -> str:
    """Returns 12 hexadecimal digits that change with the schema."""
    return hashlib.sha256(schema.encode()).hexdigest()[:12]


@cache
def schemas() -> Mapping[str, set[str]]:
    """Returns the digests of each overload's reviewed schemas in all versions, by name without `aten::`."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for file in FILES:
        for line in file.read_text(encoding="ascii").splitlines()[2:]:  # after the version and the header
            name, schema, _ = line.split(",", 2)
            found[name].add(schema)
    return dict(found)


@cache
def is_reviewed(full: str) -> bool:
    """Returns True if the table has this overload (`aten::sum.dim_IntList`) as this torch has it."""
    known = schemas().get(full.removeprefix("aten::"))
    if known is None or running_version() in TESTED_TORCH:
        return known is not None  # a test compares every schema of these versions
    return _live_schema(full) in known


def exists(full: str) -> bool:
    """Returns True if the running torch has this overload."""
    return bool(_live_schema(full))


def not_reviewed() -> list[str]:
    """Returns the full names of all aten overloads of the running torch that the table does not have."""
    ops = torch._C._dispatch_get_all_op_names()
    return sorted(full for full in ops if full.startswith("aten::") and not is_reviewed(full))


def installable(wanted: Iterable[Replacement]) -> list[Replacement]:
    """Returns those of the replacements that fit the running torch; a warning, once, names the others.

    An overload that a reviewed version no longer has is not named: it cannot be called.
    """
    found, misfits = [], []
    for one in wanted:
        why = misfit_reason(one)
        if not why:
            found.append(one)
        elif not (
            why == _GONE and one.op.removeprefix("aten::") in schemas() and running_version() in TESTED_TORCH
        ):
            misfits.append(f"{one.op} ({why})")
    if misfits:
        text = (
            f"torch {torch.__version__} has other ops than the versions that samebits was tested with "
            f"({', '.join(TESTED_TORCH)}), so these of its kernels are not installed: "
            f"{', '.join(dict.fromkeys(misfits))}. Bits that follow from one of these ops may vary: run "
            "`samebits verify` on your script, or install a tested version. `samebits ops` lists what was "
            "not reviewed."
        )
        warn_once(text, text, UntestedVersionWarning)
    return found


_GONE = "gone"


def misfit_reason(one: Replacement) -> str:
    """Returns the reason why a replacement does not fit this torch's kernel; empty when it does."""
    schema = _live_schema(one.op)
    if not schema:
        return _GONE
    if schema not in schemas().get(one.op.removeprefix("aten::"), ()):
        return "another schema"
    # In front of an op that torch composes, ours must stand before autograd, or the gradient is lost.
    keeps_gradient = one.device.startswith("Autograd")
    known = keeps_gradient or any(has_kernel(one.op, key) for key in (one.device, *_EXPLICIT))
    return "" if known else "no kernel of its own"


def _live_schema(full: str) -> str:
    """Returns the digest of the schema in the running torch; empty where it has no such overload."""
    packet, _, variant = full.partition(".")
    try:
        return schema_digest(str(torch._C._get_schema(packet, variant)))
    except RuntimeError:
        return ""
