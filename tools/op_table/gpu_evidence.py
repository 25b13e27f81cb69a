"""Takes the formulations that a GPU has verified from a report into the data file of this copy of samebits: needs no GPU."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.determinism import _verified_on_gpu as verified_on_gpu
from samebits.determinism._verified_on_gpu import GpuVerification
from samebits.determinism.table import _gpu_evidence as gpu_evidence
from samebits.errors import InvalidArgumentError
from samebits.selfcheck.parts.switch.battery import EQUAL, VARYING
from samebits.selfcheck.parts.switch.formulations import COVERS, PREFIX, RATIO, SOURCES, SOURCES_CASE, sources
from samebits.selfcheck.parts.switch.samples import SAMPLES, FormulationSample
from samebits.selfcheck.report import PartOutcome, SelfcheckReport

PART = "switch"


@dataclass
class AdoptedResults:
    """The results of a report about the formulations."""

    entries: list[GpuVerification] = field(default_factory=list)
    """Overloads all of whose samples have passed."""
    failed: dict[str, str] = field(default_factory=dict)
    """Overloads with a sample that failed, and the reason."""
    untried: dict[str, str] = field(default_factory=dict)
    """Overloads with a sample that was not run, or has no kernel there."""
    seen: set[str] = field(default_factory=set)
    """Overloads with equal bits in every case of the battery that dispatched them."""


def adopt(
    report: SelfcheckReport, file: Path = verified_on_gpu.FILE, table: Path = gpu_evidence.FILE
) -> AdoptedResults:
    """Writes the verified formulations of the report into the file; older entries of the same GPU are removed where it
    failed now.

    Overloads with equal bits in the battery go into the op table's file, in place of the GPU's older evidence.

    Raises:
        InvalidArgumentError: the report has no such part, or is of other formulations than these.
    """
    outcome = report.outcomes.get(PART)
    if outcome is None:
        raise InvalidArgumentError(
            f"--install: the report in {report.folder} has no part {PART!r}: run `samebits selfcheck --part {PART}` on a GPU."
        )
    machine, gpu = report.machine, report.machine["gpu"]
    found = results_of({case["case"]: case for case in outcome.cases}, machine, str(report.folder))
    found.seen = _ops(outcome, EQUAL) - _ops(outcome, VARYING)
    verified_on_gpu.record(found.entries, file, failed=[(op, gpu) for op in found.failed])
    if found.seen:
        ops = frozenset(op.removeprefix("aten::") for op in found.seen)
        gpu_evidence.record(gpu_evidence.GpuEvidence(gpu, machine["torch"], _date(machine), ops), table)
    return found


def _ops(outcome: PartOutcome, figure: str) -> set[str]:
    texts = (case.get("figures", {}).get(figure, "") for case in outcome.cases)
    return {op for text in texts for op in text.split() if op.startswith("aten::")}


def _date(machine: Mapping[str, Any]) -> dt.date:
    return dt.date.fromisoformat(machine["date"])


def results_of(
    cases: Mapping[str, Mapping[str, Any]], machine: Mapping[str, Any], folder: str
) -> AdoptedResults:
    """Returns the results of a report's cases, by name, for each overload."""
    _check_sources(cases, folder)
    found, samples = AdoptedResults(), _by_overload()
    for op, covering in samples.items():
        outcomes = [(sample, cases.get(f"{PREFIX}{sample.name}")) for sample in covering]
        wrong = [case["wrong"][0] for _, case in outcomes if case and case["state"] == "failed"]
        untried = [sample.name for sample, case in outcomes if not _covered(case, op)]
        if wrong:
            found.failed[op] = wrong[0]
        elif untried:
            found.untried[op] = f"not tried there: {', '.join(untried)}"
        else:
            ratio = max(float(case["figures"][RATIO]) for _, case in outcomes if case)
            found.entries.append(GpuVerification(op, machine["gpu"], _date(machine), machine["torch"], ratio))
    return found


def _covered(case: Mapping[str, Any] | None, op: str) -> bool:
    return case is not None and case["state"] == "passed" and op in case["figures"].get(COVERS, "").split()


def _by_overload() -> dict[str, list[FormulationSample]]:
    found: dict[str, list[FormulationSample]] = {}
    for sample in SAMPLES:
        for op in sample.covers:
            found.setdefault(op, []).append(sample)
    return found


def _check_sources(cases: Mapping[str, Mapping[str, Any]], folder: str) -> None:
    then = cases.get(SOURCES_CASE, {}).get("figures", {}).get(SOURCES)
    if then != sources():
        raise InvalidArgumentError(
            f"--install: the report in {folder} is of formulations {then}, and these are {sources()}: what a GPU has run is "
            "not what would be installed. Record it with the samebits that made the report, or run the check again."
        )
