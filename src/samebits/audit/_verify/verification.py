"""`verify`: runs the script again under conditions that must not matter; compares it with the first run."""

from __future__ import annotations

import asyncio
import math
import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, chdir
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from samebits._progress import Progress
from samebits.audit._first_difference import Difference, shortened
from samebits.audit._record.opened_files import OUTSIDE
from samebits.audit._record.record_file import Record
from samebits.audit._trace.search import FoundOp, Search, Side, runs_below
from samebits.audit._verify import check_plan
from samebits.audit._verify.baseline import BaselineComparison, facts_of
from samebits.audit._verify.check_process import ProcessOutcome, Request, Runner
from samebits.audit._verify.child_processes import run_until_signalled, scratch_folder
from samebits.audit._verify.verify_report import CheckRow, Circumstances, VerifyReport, failing_row
from samebits.audit._verify.working_folder import WrittenError, working_folder
from samebits.errors import InvalidArgumentError, VerifyError

DEMO = "demo.py"
"""The shipped example: a file beside this one, which nothing imports."""
SHOWN_FILES, SHOWN_LINES = 3, 20
"""Files written elsewhere that are named (more are counted), and lines of a script's output in a note."""
_OUTSIDE_OF_VERIFY = {
    "IncompleteStateError": "an IncompleteStateError stops it",
    "ResumeMismatchError": "a ResumeMismatchError stops its resume",
}
PATIENCE_S, PATIENCE = 60.0, 10.0
"""The seconds that a process may take, and the multiple of the first run's time."""


def verify(request: Request) -> VerifyReport:
    """Runs every check of `request` in fresh processes and reports which gave the bits of the first run.

    The script works in a view of the working directory (unless `request.in_place`), which holds its writes;
    its run directories and temporary files are moved into a scratch folder, too. The output of a script that
    fails at its first run is left in a log file that the error names.

    Raises:
        InvalidArgumentError: a check of that name does not exist.
        VerifyError: the working directory can be neither overlaid nor copied, or the script raised in its
            first run, or made no step that can be recorded.
        SignalledError: a signal ended this process; all child processes have ended, and the scratch is gone.
    """
    _check(request)
    user = None if request.in_place else Path.cwd()
    written: frozenset[str] = frozenset()
    while True:
        with (
            scratch_folder(keep=request.keep, outside=user) as scratch,
            Progress("baseline", "runs ended") as progress,
            ExitStack() as stack,
        ):
            if request.keep:
                progress.say(f"scratch: {scratch}")
            view = None
            if user is not None:
                view = stack.enter_context(working_folder(user, scratch, written, progress.say))
            runner = Runner(request, scratch, view)
            try:
                return run_until_signalled(_Verification(request, runner, progress).report())
            except WrittenError as found:
                written |= found.files
                progress.say(f"begins again, with copies of what the script writes: {found}")


def verify_demo(request: Request) -> VerifyReport:
    """Verifies a copy of the shipped example, in a scratch folder; `request.script` is not read."""
    with scratch_folder() as folder, chdir(folder):
        shutil.copy(Path(__file__).with_name(DEMO), folder)
        return verify(replace(request, script=DEMO))


def _check(request: Request) -> None:
    for option, names in (("--checks", request.groups), ("--require", request.require)):
        known = (*check_plan.GROUPS, *check_plan.KILLS)
        if unknown := set(names) - {*known}:
            raise InvalidArgumentError(
                f"{option} {','.join(sorted(unknown))!r}: choose from {', '.join(known)}."
            )


@dataclass
class _Verification:
    """One `verify` in progress."""

    request: Request
    runner: Runner
    progress: Progress
    outcomes: dict[str, list[ProcessOutcome]] = field(default_factory=dict)
    judge: BaselineComparison | None = None

    async def report(self) -> VerifyReport:
        command = shlex.join((self.request.script, *self.request.args))
        number = self.request.nproc_per_node
        sizes = ",".join(map(str, self.request.world_sizes))
        job = "" if number is None else f"--nproc-per-node {number}, "
        job += f"--world-sizes {sizes}, " if sizes else ""
        self.progress.say(f"verifying: {command}   ({job}--seed {self.request.seed})")
        plain, root = check_plan.ProcessVariation(), self._root("baseline")
        first = await self.runner.run(plain, root, self.request.timeout)
        baselines = self._require_success(first)
        baseline = baselines[0]
        self.runner.remove_layer(self._root("baseline"))
        facts = replace(facts_of(*baselines), world_sizes=self.request.world_sizes)
        compiled, compiling = (baseline.end or {}).get("compiled", (0, 0.0))
        seconds = first.ended.seconds - compiling
        if compiled:
            self.progress.say(f"compiled {compiled} kernels first, in {compiling:.1f} s, for all runs")
        checks = check_plan.checks_after(facts, self.request.groups, self.request.seed)
        left_out: list[check_plan.Check] = []
        if self.request.within is not None:
            left = self.request.within - first.ended.seconds
            checks, left_out = check_plan.within(checks, left, seconds, self.request.jobs)
        processes = 1 + sum(len(check.processes) for check in checks)
        self._announce_plan(seconds, len(facts.steps), processes)
        self.outcomes["baseline"] = [first]
        rows = await self._rows(baselines, check_plan.run_again(as_run=self.request.as_run), checks)
        shown = failing_row(rows) or rows[0]
        assert self.judge is not None
        return VerifyReport(
            runs=self.judge.runs(shown, self.outcomes.get(shown.check.name, ())),
            found=await self._find_op(baselines, rows, seconds),
            request=self.request,
            final=baseline.final or "(no model was seen)",
            environment=(baseline.end or {}).get("environment", {}),
            rows=tuple(rows),
            notes=tuple(self._notes(baselines, facts)),
            left_out=tuple(left_out),
            files=self._files(),
            planned_steps=facts.planned,
            circumstances=self._circumstances(baseline, facts),
        )

    async def _find_op(
        self, baselines: Sequence[Record], rows: Sequence[CheckRow], seconds: float
    ) -> FoundOp | None:
        """Returns the first op that differs in the row of the verdict."""
        required = (row for row in rows if row.check.group in self.request.require)
        row = failing_row(row for row in rows if row.difference is not None) or failing_row(rows)
        row = row or next((row for row in required if row.difference is not None), None)
        if not self.request.find_op or row is None:
            return None
        outcomes = self.outcomes.get(row.check.name, [])
        difference = row.difference or _at_resume(outcomes)
        if difference is None or not outcomes or row.check.group == "replicas":
            return None
        if row.check.group == "world-sizes" and not _goes_by_shards(baselines[0], outcomes, difference):
            return None  # ranks with other data, or other parts of the parameters, have other ops
        self.progress.say(
            f"finding the op: two runs, one step traced in each, and the op by itself; about "
            f"{math.ceil(4 * seconds + 30)} s (--no-find-op leaves it out)"
        )
        traced = _traced(outcomes, difference)
        # a row of kills has lost state in a resume: its other side must not resume
        runs = () if row.check.group == "kill" else runs_below(self._root("baseline"))
        varied = Side(
            row.check.processes[: traced + 1],
            tuple(outcome.variant for outcome in outcomes[: traced + 1]),
            runs,
        )
        patience = 3 * (self.request.timeout or PATIENCE_S + PATIENCE * seconds)
        sides = Side(run_dirs=runs), varied
        say, unsaved = self.progress.say, tuple(self._unsaved())
        assert self.judge is not None
        search = Search(
            self.runner, row.check, difference, baselines, sides, patience, say, self.judge.ignore, unsaved
        )
        return await search.find()

    def _circumstances(self, baseline: Record, facts: check_plan.BaselineFacts) -> Circumstances:
        known = (baseline.end or {}).get("cures", {})
        return Circumstances(
            self.request.as_run,
            known.get("seeded", False),
            facts.across is not None,
            known.get("adapter", ""),
            frozenset(known.get("given", ())),
            {path: text for path, (_, text) in self._unsaved().items()},
        )

    def _unsaved(self) -> dict[str, tuple[str, str]]:
        """Returns the error that names each value outside of verify, and its text: the first one."""
        found: dict[str, tuple[str, str]] = {}
        for end in self._ends():
            found = end.get("cures", {}).get("unsaved", {}) | found
        return found

    def _files(self) -> dict[str, str]:
        """Returns the SHA-256 of the script, its modules and the files that it read, by path."""
        files = {path: text for end in self._ends() for path, text in end.get("files", {}).items()}
        return dict(sorted(files.items()))

    def _ends(self) -> list[dict[str, Any]]:
        """Returns the last line of each record of a process that was not killed."""
        records = [one for ended in self.outcomes.values() for outcome in ended for one in outcome.records]
        return [record.end for record in records if record is not None and record.end is not None]

    def _announce_plan(self, seconds: float, steps: int, processes: int) -> None:
        jobs = self.request.jobs
        self.progress.describe("checks")
        self.progress.expect_more(processes)
        at_once = "" if jobs == 1 else f", {jobs} at a time"
        more = f"{processes} more run{'' if processes == 1 else 's'}{at_once}"
        estimate = math.ceil(seconds * processes / jobs)
        self.progress.say(f"baseline {seconds:.1f} s, {steps} steps; {more}, about {estimate} s")

    def _notes(self, baselines: Sequence[Record], facts: check_plan.BaselineFacts) -> list[str]:
        notes = list(dict.fromkeys(note for record in baselines for note in record.notes))
        outside = [note.removeprefix(OUTSIDE) for note in notes if note.startswith(OUTSIDE)]
        if len(outside) > SHOWN_FILES:
            notes = [note for note in notes if not note.startswith(OUTSIDE)]
            notes.append(OUTSIDE + shortened(outside, SHOWN_FILES))
        for name, stops in _OUTSIDE_OF_VERIFY.items():
            if paths := [path for path, (error, _) in self._unsaved().items() if error == name]:
                notes.append(f"outside of verify {stops}: {shortened(paths)}")
        notes += [f"not seen: {item}" for item in (baselines[0].end or {}).get("not_seen", ())]
        if self.request.in_place:
            notes.append(
                f"--in-place: files that the script itself writes below {Path.cwd()} were overwritten"
            )
        kills = any(name.startswith("kill") for name in self.request.groups)
        if self.request.steps is not None and not facts.uses_run:
            notes.append(
                "the script has no samebits.Run: its epochs were not shortened, so validation may not have "
                "been reached"
            )
        elif self.request.steps is not None and len(facts.steps) < (facts.planned or math.inf) and kills:
            whole = "steps" if facts.planned is None else f"of about {facts.planned} steps"
            notes.append(
                f"kills within the first {len(facts.steps)} {whole}: what changes later is not tried"
            )
        return notes

    def _require_success(self, first: ProcessOutcome) -> list[Record]:
        failure = first.failure()
        records = [record for record in first.records if record is not None and record.steps]
        if failure or len(records) < len(first.records):
            failure = failure or (
                "no step was seen, of a Run, of an optimizer, or of parameters that change between two "
                "calls of a module: there is nothing to compare"
            )
            error = VerifyError(f"{self.request.script}: {failure} (its output: {self._saved_log(first)})")
            error.add_note(first.output(SHOWN_LINES))
            raise error
        return records

    def _saved_log(self, first: ProcessOutcome) -> Path:
        if self.request.keep:
            return first.ended.log
        handle, name = tempfile.mkstemp(prefix="samebits-verify-", suffix=".log")
        os.close(handle)
        return Path(shutil.copyfile(first.ended.log, name))

    async def _rows(
        self, baseline: Sequence[Record], again: check_plan.Check, checks: Sequence[check_plan.Check]
    ) -> list[CheckRow]:
        first, *others = (asyncio.create_task(self._run(check)) for check in (again, *checks))
        try:
            await first
            self.judge = judge = BaselineComparison.of(baseline, self.outcomes[again.name][0].records)
            row = judge.row(again, self.outcomes[again.name])
            if judge.is_useless:
                rest = (
                    judge.row(check, ()) if check.group == "replicas" else CheckRow(check, overshadowed=True)
                    for check in checks
                )
                return [row, *rest]
            await asyncio.gather(*others)
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
        rows = [judge.row(check, self.outcomes[check.name]) for check in checks]
        return await self._separate_surroundings(judge, [row, *rows])

    async def _run(self, check: check_plan.Check) -> None:
        """Runs the check's processes one after another, in one run root, until one ends otherwise."""
        ended = self.outcomes[check.name] = []
        for process in check.processes:
            outcome = await self._run_process(process, self._root(check.name))
            ended.append(outcome)
            if outcome.failure() or (process.kill is not None and not outcome.killed_as_planned):
                break
        self.runner.remove_layer(self._root(check.name))

    async def _run_process(
        self, process: check_plan.ProcessVariation, root: Path, variant: int | None = None
    ) -> ProcessOutcome:
        patience = self.request.timeout
        if patience is None:
            patience = PATIENCE_S + PATIENCE * self.outcomes["baseline"][0].ended.seconds
        outcome = await self.runner.run(process, root, patience, variant)
        self.progress.advance()
        return outcome

    async def _separate_surroundings(self, judge: BaselineComparison, rows: list[CheckRow]) -> list[CheckRow]:
        """Separates a difference by the variation from one by the hash seed, which had no effect before.

        A script that iterates over a set of two strings passes "run again" half of the time.
        """
        if rows[0].equal is False:
            return rows
        first_of_group = {row.check.group: row for row in reversed(rows) if row.equal is False}
        for row in first_of_group.values():
            for outcome in self.outcomes[row.check.name]:
                self.progress.expect_more(1)
                root = self._root(f"control {outcome.variant}")
                plain = await self._run_process(check_plan.ProcessVariation(), root, outcome.variant)
                self.runner.remove_layer(root)
                found = judge.difference([plain.records])
                if found is not None:
                    return self._again_differs(judge, rows, found)
        return rows

    def _again_differs(
        self, judge: BaselineComparison, rows: list[CheckRow], difference: Difference
    ) -> list[CheckRow]:
        judge = BaselineComparison(judge.baseline, judge.ignore, difference)
        later = [judge.row(row.check, self.outcomes[row.check.name]) for row in rows[1:]]
        return [replace(rows[0], difference=difference), *later]

    def _root(self, name: str) -> Path:
        return self.runner.scratch / f"root of {name}"


def _goes_by_shards(baseline: Record, outcomes: Sequence[ProcessOutcome], difference: Difference) -> bool:
    """Returns True if a job of another size has the same ops in each shard, and its step differs."""
    end = baseline.end or {}
    killed = any(outcome.process.kill is not None for outcome in outcomes)
    return (
        end.get("sharded", False)
        and end.get("layout") != "FSDP2"
        and difference.place == "step"
        and not killed
    )


def _at_resume(outcomes: Sequence[ProcessOutcome]) -> Difference | None:
    """Returns the step with which a resumed process began that raised before it had a line."""
    begun = [record.resumed_from for one in outcomes[1:] for record in one.records[:1] if record is not None]
    return Difference(begun[-1], "batch", ()) if begun and begun[-1] is not None else None


def _traced(outcomes: Sequence[ProcessOutcome], difference: Difference) -> int:
    """Returns the number of the first resumed process that has the step of the difference."""
    step = difference.step + (difference.place == "resumed")
    for number, outcome in enumerate(outcomes):
        steps = [key[1] for record in outcome.records if record is not None for key in record.steps]
        if (number or len(outcomes) == 1) and step in steps:
            return number
    return len(outcomes) - 1
