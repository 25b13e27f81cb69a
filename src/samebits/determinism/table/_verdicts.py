"""The verdict of an overload on a device: from our replacements, `own.toml`, its class, and measurements."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from samebits.determinism import _all_replacements as catalogue
from samebits.determinism._environment import running_version
from samebits.determinism._ops import coverage
from samebits.determinism._ops import replacements as every_machine
from samebits.determinism._replacement import Replacement
from samebits.determinism._reviewed_schemas import not_reviewed, schemas
from samebits.determinism.table._class_rules import rule_of
from samebits.determinism.table._evidence import GpuEvidence, gpu_evidence, seen_cases
from samebits.determinism.table._overload_facts import OverloadRow, ReviewedOverloads, reviewed
from samebits.determinism.table._verdict_names import (
    ABSENT,
    ALTERNATIVE,
    COMPOSITE,
    DETERMINISTIC,
    DEVICES,
    NO_KERNEL,
    NOT_REVIEWED,
    OF_COMPLEX,
    OVER_THREADS,
    OWN,
    RAISING,
    REFUSED,
    REPLACED,
    SERIAL,
    UNWRITTEN,
    VARIES,
    VERDICTS,
)
from samebits.errors import InvalidArgumentError

OWN_FILE = Path(__file__).with_name("own.toml")
_RAISES = {"": "", coverage.DENIED: RAISING[0], coverage.INTEGERS: RAISING[1]}
_NOT_CALLED = frozenset({"mkldnn_rnn_layer"})
"""Ops that composites call, and not under `across="threads"`: it turns torch's flag for oneDNN off."""
_ON_ONE_THREAD = {"": "on", coverage.REAL: "complex numbers on", coverage.INTEGERS: "all but integers on"}


@dataclass(frozen=True)
class Entry:
    """One cell of the table.

    Example:
        >>> entry = samebits.determinism.table.lookup("aten::mm", "cpu")
        >>> entry.op, entry.device, entry.verdict, entry.deterministic
        ('aten::mm', 'cpu', 'has an alternative here', True)
    """

    op: str
    """Full name, as `aten::sum.dim_IntList`."""
    device: str
    verdict: str
    reason: str
    evidence: str
    """`battery`, `opinfo`, `source` or `none`."""
    torch: str
    """The version of torch it was reviewed (or measured) with."""
    rule: str
    """The rule that decided: a class of `rules`, `own`, `replacement`, `composite` or `no kernel`."""
    threads: str = ""
    """`equal` or `varies` over thread counts, as measured; empty where it was not measured."""
    measured_as: str = ""
    """The form that was measured, where it is another one with the same kernel."""
    machine: str = ""
    """Under `across="machines"`: `exact` (torch's kernel), `integers` (torch's, for these alone), `ours`,
    `composed`, or `refused` (it raises, at least for one ordinary argument); empty except on the CPU."""
    raises: str = ""
    """The types for which it raises there: `all`, `all but integers`, `complex numbers`; empty: for none."""

    @property
    def deterministic(self) -> bool:
        """True if equal inputs give equal bits under the switch, at a fixed thread count."""
        return self.verdict in {OVER_THREADS, DETERMINISTIC, ALTERNATIVE, SERIAL}


class OpTable:
    """The entries of a snapshot, with the replacements, the lines of `own.toml`, cases and GPUs."""

    def __init__(
        self,
        snapshot: ReviewedOverloads,
        replacements: Iterable[Replacement],
        lines: Iterable[Mapping[str, Any]],
        cases: Mapping[str, tuple[str, ...]],
        gpus: Iterable[GpuEvidence] = (),
        machine: Iterable[Replacement] = (),
    ) -> None:
        self.snapshot, self._cases, self._gpus = snapshot, cases, tuple(gpus)
        every = (*replacements, *machine)
        self._ours = {(one.op.removeprefix("aten::"), one.device.lower()): one for one in every}
        self._every_machine = {one.op.removeprefix("aten::") for one in machine if one.device == "CPU"}
        self._own = {(name, line["device"]): line for line in lines for name in line["ops"]}
        self._forms: dict[str, list[OverloadRow]] = {}
        for row in snapshot.rows.values():
            self._forms.setdefault(row.form_of, []).append(row)
        self._entries: dict[tuple[str, str], Entry] = {}

    def lookup(self, op: str, device: str) -> Entry:
        """Returns the same as the function `lookup`."""
        name = op.removeprefix("aten::")
        if device in DEVICES and name in _not_reviewed():
            return _not_reviewed_entry(name, device)
        if name not in self.snapshot.rows or device not in DEVICES:
            raise InvalidArgumentError(
                f"lookup({op!r}, {device!r}): the op table has the aten overloads of torch "
                f"{self.snapshot.torch}, by full name as aten::sum.dim_IntList, for the devices "
                f"{' and '.join(DEVICES)}."
            )
        if (name, device) not in self._entries:
            row = self.snapshot.rows[name]
            entry = self._entry(row, device)
            machine = self._machine(row, entry)
            self._entries[name, device] = replace(entry, machine=machine, raises=self._raises(row, machine))
        return self._entries[name, device]

    def entries(self) -> Iterator[Entry]:
        """Yields every entry, by name and device; last those that are not reviewed."""
        names = dict.fromkeys((*self.snapshot.rows, *_not_reviewed()))
        return (self.lookup(name, device) for name in names for device in DEVICES)

    def _entry(self, row: OverloadRow, device: str) -> Entry:
        ours = self._replacement(row, device)
        if ours is not None:
            return self._replaced(row, ours)
        if device == "cpu" and row.name in self._serial:
            return self._with_one_thread(row)
        return self._torchs(row, device)

    def _torchs(self, row: OverloadRow, device: str) -> Entry:
        """Returns the entry of torch's kernel."""
        entry = self._unmeasured(row, device)
        if entry.rule in {ABSENT, COMPOSITE} or entry.verdict in {UNWRITTEN, REFUSED}:
            return entry
        return self._with_measurement(entry, row, "torch") if device == "cpu" else self._with_gpu(entry, row)

    def _unmeasured(self, row: OverloadRow, device: str) -> Entry:
        functional = self.snapshot.rows[row.form_of]
        if not (row.has_kernel(device) and (not row.generated or functional.has_kernel(device))):
            return self._new(row, device, NO_KERNEL, f"does not run on {device}", "source", ABSENT)
        own = self._own.get((row.form_of, device)) or self._own.get((row.form_of.partition(".")[0], device))
        if own is not None:
            return self._new(row, device, own["verdict"], own["reason"], own["evidence"], OWN)
        if "composite" in row.kernels:
            return self._composite(row, device)
        rule = rule_of(row, functional)
        verdict = _verdict_on(device, rule.verdict)
        return self._new(row, device, verdict, rule.reason, rule.evidence, rule.name)

    def _with_one_thread(self, row: OverloadRow) -> Entry:
        """Returns the entry of torch's kernel that `across="threads"` runs on one thread, for some types."""
        types = self._serial[row.name]
        entry = self._unmeasured(row, "cpu")
        reason = f"{entry.reason}; with across='threads' {_ON_ONE_THREAD[types]} one thread"
        verdict = entry.verdict if types or entry.verdict != DETERMINISTIC else SERIAL
        return self._with_measurement(replace(entry, verdict=verdict, reason=reason), row, "ours")

    def serial_kernels(self) -> Iterator[tuple[str, str, str]]:
        """Yields torch's kernels that `across="threads"` runs on one thread: full name, dispatch key, types.

        They are those that `across="machines"` refuses, for all types or (`integers`, `real`) for the others,
        but for dense ones that are known to have the same bits for any thread count. oneDNN's layout has
        kernels that torch hands out to nobody.
        """
        for full, key, covered in coverage.refusals(frozenset()):
            dense = key == "CPU" and full.removeprefix("aten::") in self._serial
            if dense or key not in {"CPU", "MkldnnCPU"}:
                yield full, key, covered.types

    @cached_property
    def _serial(self) -> dict[str, str]:
        """The dense ones among `serial_kernels`, without `aten::`, with their types."""
        rows = self.snapshot.rows
        return {
            name: covered.types
            for full, key, covered in coverage.refusals(frozenset())
            if key == "CPU" and (name := full.removeprefix("aten::")) in rows
            if self._torchs(rows[name], "cpu").verdict != OVER_THREADS
        }

    def _machine(self, row: OverloadRow, entry: Entry) -> str:
        if entry.device != "cpu" or entry.verdict == NO_KERNEL:
            return ""
        if row.name in self._every_machine:
            return coverage.OURS
        if self.refused_parts(row.name):
            return coverage.DENIED
        covered = coverage.of_torch(row, self.snapshot.rows[row.form_of])
        return coverage.INTEGERS if covered.types == coverage.INTEGERS else covered.kind

    def _raises(self, row: OverloadRow, machine: str) -> str:
        if machine in _RAISES or self._is_listed(row, "some"):
            return _RAISES.get(machine, RAISING[0])
        real = coverage.of_torch(row, self.snapshot.rows[row.form_of]).types == coverage.REAL
        return OF_COMPLEX if self._is_listed(row, "complex") or (real and machine != coverage.OURS) else ""

    def _is_listed(self, row: OverloadRow, what: str) -> bool:
        listed = coverage.refused_for(what)
        op = row.form_of.partition(".")[0].removeprefix("_foreach_")
        calls = self._calls(row) if "composite" in row.kernels and op not in listed["not"] else ()
        return any(name.partition(".")[0] in listed["ops"] for name in (op, *calls))

    def refused_parts(self, name: str) -> tuple[str, ...]:
        """Returns the same as the function `refused_parts`."""
        row = self.snapshot.rows.get(name)
        if row is None or "composite" not in row.kernels or name in self._every_machine:
            return ()
        calls = (one for one in self._calls(row) if one in self.snapshot.rows and one not in _NOT_CALLED)
        parts = (self.lookup(one, "cpu") for one in calls)
        return tuple(part.op for part in parts if part.machine == coverage.DENIED)

    def _calls(self, row: OverloadRow) -> tuple[str, ...]:
        """Returns the calls of a composite; where none were seen, those of the other overloads of its op."""
        if row.calls:
            return row.calls
        op = row.name.partition(".")[0]
        siblings = (one for one in self.snapshot.rows.values() if one.name.partition(".")[0] == op)
        return tuple(dict.fromkeys(call for one in siblings for call in one.calls))

    def _new(
        self, row: OverloadRow, device: str, verdict: str, reason: str, evidence: str, rule: str
    ) -> Entry:
        return Entry(f"aten::{row.name}", device, verdict, reason, evidence, self.snapshot.torch, rule)

    def _replacement(self, row: OverloadRow, device: str) -> Replacement | None:
        """Returns ours for this overload, or for a form that torch's one kernel for all devices calls."""
        forms = [row, *self._forms[row.form_of]] if row.kernels == ("explicit",) else [row]
        return next((self._ours[one.name, device] for one in forms if (one.name, device) in self._ours), None)

    def _replaced(self, row: OverloadRow, ours: Replacement) -> Entry:
        device = ours.device.lower()
        if not ours.verified:
            reason = (
                f"alternative unverified (no {ours.device} has run it, so torch's error stands): "
                f"{ours.reason}"
            )
            return self._new(row, device, REFUSED, reason, "source", REPLACED)
        if device == "cuda":
            reason = f"{ours.reason}; ran on {ours.verified}"
            return self._new(row, device, ALTERNATIVE, reason, "battery", REPLACED)
        entry = self._new(row, device, SERIAL if ours.serial else ALTERNATIVE, ours.reason, "none", REPLACED)
        return self._with_measurement(entry, row, "ours")

    def _composite(self, row: OverloadRow, device: str) -> Entry:
        """Returns the entry of a composite, as deterministic as the ops that it calls: the worst of them."""
        if not row.calls:
            reason = "composite: as deterministic as the ops that it calls, which nobody has looked at"
            return self._new(row, device, DETERMINISTIC, reason, "none", COMPOSITE)
        called = (name for name in row.calls if name in self.snapshot.rows and name not in _NOT_CALLED)
        parts = [self.lookup(name, device) for name in called]
        parts = [part for part in parts if part.verdict not in {NO_KERNEL, UNWRITTEN}]
        if not parts:
            reason = "composite: calls nothing that computes"
            return self._new(row, device, _verdict_on(device, OVER_THREADS), reason, "source", COMPOSITE)
        worst = max(parts, key=lambda part: VERDICTS.index(part.verdict))
        evidence = "none" if any(part.evidence == "none" for part in parts) else "source"
        entry = self._new(row, device, worst.verdict, f"composite: calls {worst.op}", evidence, COMPOSITE)
        varying = next((part for part in parts if part.threads == "varies"), None)
        if varying is None:
            return entry
        reason = f"{entry.reason}; bits of {varying.op} change with the thread count"
        return replace(entry, reason=reason, threads="varies")

    def _with_gpu(self, entry: Entry, row: OverloadRow) -> Entry:
        """Returns the entry, with the last GPU that has run the overload."""
        found = [one for one in self._gpus if row.name in one.ops]
        if not found:
            return entry
        last = max(found, key=lambda one: one.date)
        torch = last.torch.split("+")[0]
        return replace(entry, evidence="battery", torch=torch, reason=f"{entry.reason}; seen equal on {last}")

    def _with_measurement(self, entry: Entry, row: OverloadRow, kernel: str) -> Entry:
        """Returns the entry with the measurement of the overload, or of another form with the same kernel."""
        measured = row if row.runs and row.kernel == kernel else self._measured_form(row.form_of, kernel)
        if measured is None:
            return entry
        here = measured is row
        entry = replace(
            entry,
            evidence=measured.source if here else "source",
            torch=measured.tested,
            threads=measured.threads,
            measured_as="" if here else f"aten::{measured.name}",
        )
        if measured.runs == "varies":
            return replace(entry, verdict=VARIES, reason=f"{entry.reason}; bits differ from run to run")
        if measured.threads == "varies":
            verdict = DETERMINISTIC if entry.verdict == OVER_THREADS else entry.verdict
            return replace(
                entry, verdict=verdict, reason=f"{entry.reason}; bits change with the thread count"
            )
        if measured.threads == "equal" and entry.verdict == DETERMINISTIC and entry.rule != OWN:
            cases = ", ".join(self._cases.get(measured.name, ()))
            if cases:  # cases that could have differed; without any there is no evidence
                return replace(entry, verdict=OVER_THREADS, reason=f"{entry.reason}; seen equal in {cases}")
            return replace(entry, threads="")
        return entry

    def _measured_form(self, functional: str, kernel: str) -> OverloadRow | None:
        """Returns a measured form of the same op: one that varies, if there is one."""
        measured = [row for row in self._forms.get(functional, ()) if row.runs and row.kernel == kernel]
        worst = [row for row in measured if "varies" in (row.runs, row.threads)]
        return next(iter(worst or measured), None)


@cache
def _not_reviewed() -> tuple[str, ...]:
    return tuple(full.removeprefix("aten::") for full in not_reviewed())


def _not_reviewed_entry(name: str, device: str) -> Entry:
    what = "another schema than the reviewed one" if name in schemas() else "new, or of an extension"
    reason = f"{what}: nobody knows whether its bits repeat; its first call warns"
    return Entry(f"aten::{name}", device, NOT_REVIEWED, reason, "none", running_version(), NOT_REVIEWED)


def _verdict_on(device: str, verdict: str) -> str:
    """Returns the verdict on a device: CPU threads do not count on CUDA."""
    return DETERMINISTIC if device == "cuda" and verdict == OVER_THREADS else verdict


def own_lines() -> list[dict[str, Any]]:
    """Returns the lines of `own.toml`."""
    return tomllib.loads(OWN_FILE.read_text(encoding="ascii"))["op"]


@cache
def op_table() -> OpTable:
    """Returns the table of this package."""
    return _table(catalogue.all_replacements(), gpu_evidence())


@cache
def cpu_table() -> OpTable:
    """Returns the table for the CPU alone, which loads no formulation for CUDA: for the switch."""
    return _table(catalogue.REPLACEMENTS, ())


def _table(replacements: Iterable[Replacement], gpus: Iterable[GpuEvidence]) -> OpTable:
    return OpTable(reviewed(), replacements, own_lines(), seen_cases(), gpus, every_machine.REPLACEMENTS)


def lookup(op: str, device: str) -> Entry:
    """Returns the entry of an overload on `cpu` or `cuda`, by the name that `OpOverload.name()` returns.

    Raises:
        InvalidArgumentError: the reviewed torch has no such overload (TorchScript's own are not in the
            table), or the device is not one of the two.

    Example:
        >>> samebits.determinism.table.lookup("aten::mm", "cpu").verdict
        'has an alternative here'
        >>> samebits.determinism.table.lookup("aten::empty.memory_format", "cpu").verdict
        'unwritten'
        >>> samebits.determinism.table.lookup("aten::no_such_op", "cpu")
        Traceback (most recent call last):
            ...
        samebits.errors.InvalidArgumentError: ...
    """
    return op_table().lookup(op, device)


def refused_parts(op: str) -> tuple[str, ...]:
    """Returns the ops that a composite op calls and `across="machines"` refuses; empty for other ops.

    Args:
        op: the full name of an overload.

    Example:
        >>> samebits.determinism.table.refused_parts("aten::svd")
        ('aten::_linalg_svd',)
    """
    return op_table().refused_parts(op.removeprefix("aten::"))


def entries() -> Iterator[Entry]:
    """Yields every entry, by name and device.

    Example:
        >>> entries = list(samebits.determinism.table.entries())
        >>> sorted({entry.device for entry in entries})
        ['cpu', 'cuda']
        >>> [entry.op for entry in entries if entry.device == "cpu" and entry.verdict == "varies"]
        []
    """
    return op_table().entries()
