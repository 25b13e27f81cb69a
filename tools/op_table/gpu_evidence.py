"""`python tools/op_table/gpu_evidence.py gpu-report/report.json` takes a GPU's evidence into the data files; needs no GPU.

Formulations all of whose samples have passed go into `_cuda_decompositions/verified.toml`, and the switch installs them.
Older entries of the same GPU are removed where it failed now. Overloads with equal bits in every case of the battery
that dispatched them go into `table/gpus.toml`, in place of that GPU's older evidence.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from formulation_samples import SAMPLES
from gpu_report import COVERS, EQUAL, RATIO, VARYING, formulations
from samebits.determinism import _verified_on_gpu as verified_on_gpu
from samebits.determinism._verified_on_gpu import GpuVerification
from samebits.determinism.table import _evidence as gpu_evidence

CASE = "test_switch.py::test_a_formulation_has_the_values_of_the_cpu[{}]"


@dataclass
class GpuRun:
    """The results of a report about the formulations and the battery."""

    entries: list[GpuVerification] = field(default_factory=list)
    """Overloads all of whose samples have passed."""
    failed: dict[str, str] = field(default_factory=dict)
    """Overloads with a sample that failed, and the reason."""
    untried: dict[str, str] = field(default_factory=dict)
    """Overloads with a sample that was not run, or has no kernel there."""
    seen: set[str] = field(default_factory=set)
    """Overloads with equal bits in every case of the battery that dispatched them."""


def results_of(report: Mapping[str, Any]) -> GpuRun:
    """Returns the results for each overload.

    Raises:
        ValueError: the report is of other formulations than these, or has none.
    """
    environment, cases = report["environment"], report["cases"]
    if environment["formulations"] != formulations():
        raise ValueError(
            f"the report is of formulations {environment['formulations']}, and these are {formulations()}: "
            "record it with the sources that made it, or run `make gpu` again"
        )
    samples = {sample.name: cases.get(CASE.format(sample.name)) for sample in SAMPLES}
    if not any(samples.values()):
        raise ValueError(
            "the report has no formulation: run `make gpu ARGS=tests/gpu/test_switch.py` on a GPU"
        )
    date, found = dt.date.fromisoformat(environment["date"]), GpuRun()
    for op in dict.fromkeys(op for sample in SAMPLES for op in sample.covers):
        names = [sample.name for sample in SAMPLES if op in sample.covers]
        ran = {name: samples[name] or {"state": "not run"} for name in names}
        wrong = [case["wrong"][0] for case in ran.values() if case["state"] == "failed"]
        untried = [name for name, case in ran.items() if not _covered(case, op)]
        if wrong:
            found.failed[op] = wrong[0]
        elif untried:
            found.untried[op] = f"not tried there: {', '.join(untried)}"
        else:
            ratio = max(float(case["figures"][RATIO]) for case in ran.values())
            found.entries.append(GpuVerification(op, environment["gpu"], date, environment["torch"], ratio))
    found.seen = _named(cases, EQUAL) - _named(cases, VARYING)
    return found


def _covered(case: Mapping[str, Any], op: str) -> bool:
    return case["state"] == "passed" and op in case["figures"].get(COVERS, "").split()


def _named(cases: Mapping[str, Any], figure: str) -> set[str]:
    texts = (case.get("figures", {}).get(figure, "") for case in cases.values())
    return {op.removeprefix("aten::") for text in texts for op in text.split() if op.startswith("aten::")}


def record(report: Mapping[str, Any], verified: Path, table: Path) -> GpuRun:
    """Writes the results of the report into the two files, and returns them."""
    found, environment = results_of(report), report["environment"]
    gpu = environment["gpu"]
    verified_on_gpu.record(found.entries, verified, failed=[(op, gpu) for op in found.failed])
    if found.seen:
        date = dt.date.fromisoformat(environment["date"])
        seen = gpu_evidence.GpuEvidence(gpu, environment["torch"], date, frozenset(found.seen))
        gpu_evidence.record(seen, table)
    return found


def main(arguments: list[str]) -> int:
    """Writes the data files; returns 0, or 1 where a formulation failed or none was verified."""
    report = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    found = record(report, verified_on_gpu.FILE, gpu_evidence.GPU_FILE)
    for title, lines in (("failed", found.failed), ("untried", found.untried)):
        for op, why in lines.items():
            print(f"{title:8} {op}: {why}")
    print(
        f"{len(found.entries)} overloads verified on {report['environment']['gpu']}; {len(found.failed)} failed, "
        f"{len(found.untried)} not tried; {len(found.seen)} seen equal there. `samebits ops --device cuda` shows them."
    )
    return 0 if found.entries and not found.failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
