"""`python tools/op_table/update.py [--pin] [EVIDENCE.json ...]` reviews the running torch.

It writes `snapshot.csv` where that is the pinned version, or `--pin` makes it so, else its lines of `versions.csv`. It
takes the overloads from the torch that is running, the kernels of other devices from torch's `native_functions.yaml`,
and measurements from the given files and from the snapshot before. Changes are printed: a person checks each, and adds
to `own.toml` where a class rule does not hold.

A file of evidence: `{"torch": "2.13.0", "overloads": {"aten::sum.dim_IntList": {"source": "battery" | "opinfo",
"runs": "equal" | "varies", "threads": "equal" | "varies"}}, "calls": {"aten::matmul": ["aten::mm"]}}`. `threads` is
absent where no tensor was large enough to be split; `calls` has the calls of composites.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import native_functions
from running_torch import LiveOverload, live_overloads, unreviewed
from samebits.determinism._all_replacements import REPLACEMENTS
from samebits.determinism._ops import replacements as one_arithmetic
from samebits.determinism.table import _evidence as evidence
from samebits.determinism.table._overload_facts import (
    FILE,
    FILE_OTHERS,
    OverloadRow,
    ReviewedOverloads,
    all_reviews,
    read_others,
    reviewed,
)
from samebits.determinism.table._verdicts import op_table
from swept_kernels import write_swept_kernels
from table_files import write, write_cases, write_others

NOTHING = ("nothing",)
"""The calls of a composite that called no other kernel."""
_CPU_KEYS = ("CPU", "MkldnnCPU", "NestedTensorCPU", "QuantizedCPU", "SparseCPU", "SparseCsrCPU")


def update_snapshot(
    before: ReviewedOverloads, live: Mapping[str, LiveOverload], evidence: Iterable[Mapping[str, Any]] = ()
) -> ReviewedOverloads:
    """Returns the snapshot of the live overloads. A file's measurement replaces the known one of that overload.

    A measurement of an overload whose schema changed since is dropped. What the battery has shown of a kernel
    stays until the battery shows something else: torch's samples are small, and of one type.
    """
    kernels = native_functions.kernels(native_functions.FILE.read_text(encoding="utf-8"))
    rows = {name: _row(one, kernels.get(name, ()), before.rows.get(name)) for name, one in live.items()}
    files = list(evidence)
    for name, measured in _merge_measurements(files).items():
        if name in rows and not _is_known_better(rows[name], measured):
            rows[name] = replace(rows[name], **measured)
    for full, called in ((full, called) for file in files for full, called in file.get("calls", {}).items()):
        name = full.removeprefix("aten::")
        if name in rows:
            names = {one.removeprefix("aten::") for one in called} | set(rows[name].calls)
            rows[name] = replace(rows[name], calls=tuple(sorted(names - {name, *NOTHING})) or NOTHING)
    return ReviewedOverloads(torch.__version__.split("+")[0], rows)


def _is_known_better(known: OverloadRow, measured: Mapping[str, Any]) -> bool:
    same = (known.kernel, known.tested) == (measured["kernel"], measured["tested"])
    return same and bool(known.runs) and known.source < measured["source"]


def _row(live: LiveOverload, listed: tuple[str, ...], before: OverloadRow | None) -> OverloadRow:
    here = {key for key in _CPU_KEYS if _has(live.name, key)}
    if not listed:
        here |= {word for key, word in native_functions.COMPOSITES.items() if _has(live.name, key)}
    keys = here | {key for key in listed if not key.endswith("CPU")}
    facts = (live.schema, live.traits, tuple(sorted(keys)), live.form_of)
    if before is None or before.schema != live.schema:
        return OverloadRow(live.name, *facts)
    schema, traits, found, form_of = facts
    return replace(before, schema=schema, traits=traits, kernels=found, form_of=form_of)


def _has(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)


def _merge_measurements(files: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Merges the measured columns per overload: one that varies in one file varies; the battery counts before OpInfo."""
    ours = {one.op.removeprefix("aten::") for one in (*REPLACEMENTS, *one_arithmetic.REPLACEMENTS)}
    ours |= {full.removeprefix("aten::") for full, key, _ in op_table().serial_kernels() if key == "CPU"}
    merged: dict[str, dict[str, Any]] = {}
    for file in files:
        for full, found in file["overloads"].items():
            name = full.removeprefix("aten::")
            known = merged.setdefault(name, {"source": found["source"], "runs": "", "threads": ""})
            known["tested"] = file["torch"].split("+")[0]
            known["kernel"] = "ours" if name in ours else "torch"
            known["source"] = min(known["source"], found["source"])  # battery, opinfo
            for word in ("runs", "threads"):
                known[word] = max(known[word], found.get(word, ""))  # nothing, equal, varies
    return merged


def cases(
    before: Mapping[str, tuple[str, ...]],
    reviews: Iterable[ReviewedOverloads],
    files: Iterable[Mapping[str, Any]],
) -> dict[str, tuple[str, ...]]:
    """Returns the cases by which each overload was equal over threads: those of the files, else those of before."""
    known = dict(before)
    rows = [item for one in reviews for item in one.rows.items()]
    battery = {name for name, row in rows if row.source == "battery"}
    for file in files:
        for full, found in file["overloads"].items():
            if found["source"] == "battery" or full.removeprefix("aten::") not in battery:
                known[full.removeprefix("aten::")] = tuple(found.get("cases", ()))
    equal = {name for name, row in rows if row.threads == "equal"}
    return {name: known[name] for name in equal if known.get(name)}


def main(arguments: list[str]) -> None:
    """Writes the review of the running torch from it and the files of evidence, and prints the new and the changed
    overloads.
    """
    live, before = live_overloads(), reviewed()
    for line in unreviewed(before, live):
        print(line)
    paths = [argument for argument in arguments if argument != "--pin"]
    files = [json.loads(Path(path).read_text()) for path in paths]
    after = update_snapshot(before, live, files)
    every = {**all_reviews(), after.torch: after}
    pinned = after if "--pin" in arguments else every[next(iter(every))]
    write(pinned, FILE)
    if "--pin" in arguments or after is not pinned:  # else the differences of the others stay
        write_others((one for one in every.values() if one is not pinned), FILE_OTHERS, pinned)
    others = read_others(FILE_OTHERS, pinned).values()  # with the new rows, where these are theirs
    seen = cases(evidence.read_seen_cases(evidence.SEEN_FILE), [pinned, *others], files)
    write_cases(seen, evidence.SEEN_FILE)
    for file in files:
        if "kernels" in file:
            write_swept_kernels(file["kernels"])
    measured = sum(bool(row.runs) for row in after.rows.values())
    print(f"torch {after.torch}: {len(after.rows)} overloads, {measured} measured; pinned: {pinned.torch}")


if __name__ == "__main__":
    main(sys.argv[1:])
