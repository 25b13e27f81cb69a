"""`samebits diff --find-op`: two recorded runs are started again, for the first op that differs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samebits._context import is_url
from samebits._progress import Progress
from samebits.audit._comparison import environments, other_files
from samebits.audit._first_difference import Difference, harmless, shortened
from samebits.audit._record.opened_files import NOT_COMPUTED, digests
from samebits.audit._record.record_file import Record
from samebits.audit._trace.search import FoundOp, Search, Side
from samebits.audit._verify.check_plan import Check, ProcessVariation
from samebits.audit._verify.check_process import Request, Runner
from samebits.audit._verify.child_processes import run_until_signalled, scratch_folder
from samebits.audit._verify.working_folder import working_folder
from samebits.errors import RecordError


def find_op(first: Sequence[Record], second: Sequence[Record], difference: Difference) -> FoundOp:
    """Starts both runs again, each from its newest commit before the step that differs, and traces that step.

    Each has the number of threads and the libraries' variables of its record. Both work in views of the
    current folder, as the processes of `verify` do.

    Raises:
        RecordError: they are of two programs, of another folder, or were not recorded by `samebits run`; the
            message says what differs.
    """
    starts = [records[0].start for records in (first, second)]
    commands = [_command(start) for start in starts]
    if commands[0] != commands[1]:
        one, other = map(shlex.join, commands)
        raise RecordError(f"--find-op: the records are of two programs: {one}, and {other}.")
    if any("cwd" not in start for start in starts):
        raise RecordError("--find-op: a record has no folder: record both runs anew with `samebits run`.")
    if Path.cwd() != Path(starts[0]["cwd"]):
        raise RecordError(f"--find-op: the runs were started in another folder. Type: cd {starts[0]['cwd']}")
    script, *args = commands[0]
    if not Path(script).exists():
        raise RecordError(
            f"--find-op: {script} is gone: put the script that was recorded back, and try again."
        )
    other = other_files(first[0], second[0])
    if versions := [path for path in other if path.endswith(".py")]:
        raise RecordError(
            f"--find-op: the records are of two versions of {shortened(versions)}; a search runs the one "
            f"that is here. Record two runs of it, and compare these. Type: {_command_again(second)}"
        )
    settings = starts[0]["environment"]["op_determinism"]
    request = Request(
        script=script,
        args=tuple(args),
        as_run=True,
        across=settings["across"] if settings.get("enabled") else "runs",
        nproc_per_node=len(first) if len(first) > 1 else None,
        run_seed=starts[0].get("seed", 0),
        jobs=2 if len(first) == 1 else 1,
    )
    sides = tuple(_side(records[0], number) for number, records in enumerate((first, second)))
    check = Check("diff", "diff", processes=sides[1].processes)
    user = Path.cwd()
    with (
        scratch_folder(outside=user) as scratch,
        Progress("finding the op", "runs") as progress,
        working_folder(user, scratch, frozenset(), progress.say) as view,
    ):
        runner = Runner(request, scratch, view)
        ignore = tuple(map(harmless, first))
        search = Search(runner, check, difference, first, (sides[0], sides[1]), None, progress.say, ignore)
        found = run_until_signalled(search.find())
    recorded = (second[0].end or {}).get("files", {})
    now = {
        path: digest
        for path, digest in digests(recorded, (), str(user)).items()
        if NOT_COMPUTED not in digest
    }
    changed = [
        path
        for path, digest in recorded.items()
        if now.get(path, digest) != digest and NOT_COMPUTED not in digest
    ]
    if changed:
        note = f"changed since the second run was recorded: {shortened(changed, 3)}"
        found = replace(found, notes=(*found.notes, note))
    differ = [f"{path} (contents)" for path in other]
    seeds = "seed", *(start.get("seed") for start in starts)
    settings_of_both = [seeds, *environments(first[0], second[0])]
    differ += [f"{name} ({a} -> {b})" for name, a, b in settings_of_both if a != b]
    if found.first.kind == "none" and differ:
        text = f"{found.cause.text}; the records differ in {shortened(differ, 4)}"
        found = replace(found, cause=replace(found.cause, text=text))
    return found


def _command_again(records: Sequence[Record]) -> str:
    """Returns what records the run of these records' command again."""
    start, known = records[0].start, records[0].start["environment"]["op_determinism"]
    job = ["torchrun", f"--nproc-per-node={len(records)}", "-m"] if len(records) > 1 else []
    seed = [] if start.get("seed") is None else ["--seed", str(start["seed"])]
    across = ["--across", known["across"]] if known.get("across", "runs") != "runs" else []
    folder = f"{records[0].path.parents[bool(job)]}-again"
    return shlex.join([*job, "samebits", "run", *seed, *across, "--record", folder, *_command(start)])


def _command(start: dict[str, Any]) -> list[str]:
    words, script = list(start["argv"]), start["script"]
    return words[words.index(script) :] if script in words else [script]


def _side(record: Record, number: int) -> Side:
    """Returns a recorded run: its threads, the variables of its libraries, its run directories."""
    known = record.start["environment"]
    variables = tuple(sorted(known.get("libraries", {}).items()))
    process = ProcessVariation(threads=known["threads"], variables=variables)
    runs = [(Path(one), Path(one).relative_to("/")) for one in record.run_dirs if not is_url(one)]
    return Side((process,), (number,), tuple(runs))
