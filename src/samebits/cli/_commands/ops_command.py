"""`samebits ops`: the op table, and its test on this machine."""

from __future__ import annotations

import difflib
import fnmatch
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samebits import cli
from samebits.audit import _review as reviewing
from samebits.audit import _verify as checking
from samebits.determinism import table
from samebits.determinism.table._verdict_names import DEVICES, EVIDENCE, MACHINE, VERDICTS
from samebits.errors import InvalidArgumentError

if TYPE_CHECKING:
    from samebits.determinism.table import Entry

SCHEMA = "samebits.ops/1"


def ops(
    *,
    op: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Overloads whose name contains TEXT, or matches a glob."),
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="|".join(DEVICES), help="Of one device.")] = None,
    verdict: Annotated[
        list[str] | None,
        typer.Option(metavar="WORDS", help=f"One of: {', '.join(VERDICTS)}. Again for more."),
    ] = None,
    evidence: Annotated[
        list[str] | None, typer.Option(metavar="WORD", help=f"One of: {', '.join(EVIDENCE)}. Again for more.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(MACHINE),
            help="Of the CPU under machine_invariant: torch's kernel, ours, made of these, refused.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every overload, not only a summary.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Also write what is shown as JSON.")
    ] = None,
    review: Annotated[
        bool, typer.Option("--review", help="Test this machine instead, over runs and threads (minutes).")
    ] = False,
) -> None:
    """Show the op table: for every aten overload and device a verdict under the switch, its reason and evidence.

    Without filters: the counts, and the ops that need a reader's attention. With --review, --op takes a part of the
    name of a case.

    Exit status: 0, or 2 for an unknown filter; of --review: 0 as in the table, 1 not, 2 it could not run.
    """
    if json_file is not None and not json_file.absolute().parent.is_dir():
        raise InvalidArgumentError(f"--json {json_file}: there is no folder {json_file.absolute().parent}.")
    if review:
        try:
            found = reviewing.review(only=[op] if op else [])
        except checking.SignalledError as signalled:
            raise typer.Exit(128 + signalled.number) from None
        reviewing.show(found)
        if json_file is not None:
            found.write_json(json_file)
        raise typer.Exit(found.exit)
    filters = _filters(op, device, verdict or [], evidence or [])
    if machine is not None:
        _check("--machine", [machine], MACHINE)
        filters.append(lambda entry: entry.machine == machine)
    chosen = [entry for entry in table.entries() if all(keeps(entry) for keeps in filters)]
    if op is not None and not chosen:
        _check_op(op)
    cli._reports.ops_report.show(list(table.entries()), chosen, list_all=everything or bool(filters))
    if json_file is not None:
        _write(json_file, chosen)


def _filters(
    op: str | None, device: str | None, verdicts: Sequence[str], evidence: Sequence[str]
) -> list[Callable[[Entry], bool]]:
    found: list[Callable[[Entry], bool]] = []
    if op is not None:
        found.append(lambda entry: _matches(op, entry.op))
    if device is not None:
        _check("--device", [device], DEVICES)
        found.append(lambda entry: entry.device == device)
    if verdicts:
        _check("--verdict", verdicts, VERDICTS)
        found.append(lambda entry: entry.verdict in verdicts)
    if evidence:
        _check("--evidence", evidence, EVIDENCE)
        found.append(lambda entry: entry.evidence in evidence)
    return found


def _matches(text: str, op: str) -> bool:
    if any(sign in text for sign in "*?["):
        return fnmatch.fnmatchcase(op, text) or fnmatch.fnmatchcase(op.removeprefix("aten::"), text)
    return text in op


def _check(option: str, words: Sequence[str], choices: Sequence[str]) -> None:
    for word in words:
        if word not in choices:
            raise InvalidArgumentError(f"{option} {word!r}: choose from {', '.join(map(repr, choices))}.")


def _check_op(op: str) -> None:
    names = [f"aten::{name}" for name in table.reviewed().rows]
    if not any(_matches(op, name) for name in names):
        packets = dict.fromkeys(name.removeprefix("aten::").partition(".")[0] for name in names)
        near = difflib.get_close_matches(op.removeprefix("aten::"), packets)
        raise InvalidArgumentError(
            f"--op {op!r}: no aten overload of torch {table.reviewed().torch} has that in its name"
            + (f"; near it: {', '.join(near)}." if near else ".")
        )


def _write(file: Path, chosen: Sequence[Entry]) -> None:
    content = {"schema": SCHEMA, "torch": table.reviewed().torch, "ops": [asdict(entry) for entry in chosen]}
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
