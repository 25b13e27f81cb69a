"""`samebits ops`: the op table."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from samebits import cli
from samebits.cli import _json_output as json_output
from samebits.cli._option_values import one_of
from samebits.determinism import table
from samebits.determinism.table._verdict_names import DEVICES, EVIDENCE, MACHINE, RAISING, REFUSED, VERDICTS
from samebits.errors import InvalidArgumentError

if TYPE_CHECKING:
    from samebits.determinism.table import Entry

SCHEMA = "samebits.ops/1"
_Filter = Callable[["Entry"], bool]


def ops(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="A function, method, module or aten op, or a pattern of ops such as 'fft_*'."
        ),
    ] = None,
    *,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="WORD",
            parser=one_of(MACHINE),
            help='Only ops of this kind under across="machines": '
            "exact (torch's kernel stays), integers (for integers alone), "
            "ours, composed (of other ops), or refused (all that raises).",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="WORD", parser=one_of(DEVICES), help="Only this device: cpu or cuda."),
    ] = None,
    verdict: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORDS",
            parser=one_of(VERDICTS),
            help=f"Only ops with this verdict; repeat for more. One of: {', '.join(VERDICTS)}.",
        ),
    ] = None,
    evidence: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            parser=one_of(EVIDENCE),
            help=f"Only verdicts with this evidence; repeat for more. One of: {', '.join(EVIDENCE)}.",
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List every overload of every op.")] = False,
    json_file: json_output.JsonFile = None,
) -> None:
    """Look up which of torch's ops give the same bits, and which raise.

    Without NAME: one screen, with the ops that most programs use.

    Exit status: 0; 2 for a name that torch does not have.

    Examples:
        samebits ops torch.stft
        samebits ops --machine refused

    Read more: docs/reference/ops.md
    """
    json_output.check_json_file(json_file)
    promise = {"raises": list(RAISING)} if machine == REFUSED else {"machine": [machine]}
    given = {"device": [device], **promise, "verdict": verdict, "evidence": evidence}
    filters = [(field, words) for field, words in given.items() if words and words != [None]]
    chosen = [
        entry for entry in table.entries() if all(getattr(entry, field) in words for field, words in filters)
    ]
    if name is not None:
        chosen = list(filter(_wanted(name), chosen))
    if not json_output.is_standard_output(json_file):
        _show(name, chosen, machine=machine, filtered=bool(filters), everything=everything)
    json_output.write_json(
        json_file,
        {"schema": SCHEMA, "torch": table.reviewed().torch, "ops": [asdict(entry) for entry in chosen]},
    )


def _show(
    name: str | None, chosen: Sequence[Entry], *, machine: str | None, filtered: bool, everything: bool
) -> None:
    if everything:
        cli._reports.ops_report.show(chosen)
    elif machine is not None:
        cli._reports.ops_overview.show_machine(chosen, raising=machine == REFUSED)
    elif filtered or (name is not None and _is_pattern(name)):
        cli._reports.ops_report.show_groups(chosen)
    elif name is not None:
        cli._reports.ops_overview.show_op(name, table.ops_of(name))
    else:
        cli._reports.ops_overview.show_families(chosen)


def _wanted(name: str) -> _Filter:
    """Returns the filter of a name or a pattern. Raises `InvalidArgumentError` for one that no op has."""
    if _is_pattern(name):
        pattern = name.removeprefix("aten::")
        found = any(fnmatch.fnmatchcase(row, pattern) for row in table.reviewed().rows)
        filter_ = lambda entry: fnmatch.fnmatchcase(entry.op.removeprefix("aten::"), pattern)  # noqa: E731
    else:
        ops = table.ops_of(name)
        found, filter_ = bool(ops), lambda entry: entry.op.removeprefix("aten::").partition(".")[0] in ops
    if not found:
        near = table._torch_names.names_near(name)
        raise InvalidArgumentError(
            f"{name}: torch {table.reviewed().torch} has no function, module or op of this name. "
            + (f"Similar names: {', '.join(near)}." if near else "`samebits ops --all` lists every op.")
        )
    return filter_


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?[")
