"""`--html`: a result as one page for a person. The file has no script in it and loads nothing.

The template is `_html_page.html`. Steps are put together into at most `CELLS` cells: one step that differs
makes its cell one that differs, and of the losses in a cell the curve keeps the lowest and the highest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2

from samebits._context import VERSION
from samebits.audit._comparison import ComparedRuns, Comparison, environments
from samebits.audit._first_difference import AFTER_A_BODY, public_name, readable_number, step_differences
from samebits.audit._record.record_file import Record, RecordLine
from samebits.audit._trace.search import FoundOp
from samebits.audit._verify.verify_report import VerifyReport
from samebits.audit._verify.verify_table import bits_version, lines_below

CELLS = 240
LISTED = 20
"""Stretches of steps that the table names for a component."""
_KINDS = {"none": "not recorded", "equal": "equal", "alone": "in one run only", "differs": "differs"}
"""The kinds of a cell; a later one hides an earlier one."""
_TONES = ("good", "bad", "unsure")
"""By exit status."""


def verify_page(report: VerifyReport) -> bytes:
    word, _, sentence = report.verdict().partition(": ")
    sentence, _, cure = sentence.partition("\n")
    head = {"command": "verify", "subject": " ".join((report.request.script, *report.request.args))}
    head |= {"word": word, "sentence": sentence, "cure": cure, "tone": _TONES[report.exit]}
    facts = {"final model digest": f"{report.final}{bits_version(report)}", "seed": report.request.seed}
    rows = [row for row in report.rows if row.applies]
    return _page(head, report.runs, facts, rows=rows, notes=list(lines_below(report)), found=report.found)


def diff_page(
    found: Comparison, folders: tuple[str, str], runs: ComparedRuns, op: FoundOp | None = None
) -> bytes:
    sentence = found.sentence().removeprefix("equal: ").removeprefix("not compared: ")
    head = {"command": "diff", "subject": " ".join(folders), "sentence": sentence}
    head |= {"word": ("EQUAL", "DIFFERENT", "NOT COMPARED")[found.exit], "tone": _TONES[found.exit]}
    return _page(head, runs, dict(zip(runs.names, folders, strict=True)), found=op)


def _page(
    head: Mapping[str, str], runs: ComparedRuns | None, facts: Mapping[str, Any], **content: Any
) -> bytes:
    """Returns the template with its values, each escaped, in ASCII, which no mail program changes."""
    folder = Path(__file__).parent
    loader = jinja2.FileSystemLoader([folder, folder.parent])
    engine = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    made = {"made": f"{datetime.now(UTC).isoformat(timespec='seconds')} by samebits {VERSION}"}
    text = engine.get_template("_html_page.html").render(
        head,
        names=runs.names if runs is not None else ("the first run", "the second run"),
        kinds=_KINDS,
        listed=LISTED,
        strip=runs and _strip(runs),
        environments=runs and environments(*runs.records),
        facts={**facts, **made},
        tensors_of=_tensors,
        **content,
    )
    return text.encode("ascii", "xmlcharrefreplace")


# The strip of steps, and the loss curves over it.


def _strip(runs: ComparedRuns) -> dict[str, Any]:
    a, b = runs.records
    lines = a.steps | b.steps
    differing = {mine.key: parts for mine, _, parts in step_differences(a, b, runs.ignore)}
    width, kinds = min(CELLS, len(lines)), list(_KINDS)
    places = {key: number * width // len(lines) for number, key in enumerate(lines)}
    grid: dict[str, list[int]] = {}
    first: dict[str, int] = {}
    for key, at in places.items():
        parts = {public_name(name) for name in differing.get(key, ())}
        kind = kinds.index("equal" if key in a.steps and key in b.steps else "alone")
        seen = {public_name(name) for name, value in lines[key].values.items() if value != []}
        for name in parts | seen:
            cells = grid.setdefault(name, [0] * width)
            cells[at] = max(cells[at], kinds.index("differs") if name in parts else kind)
        for name in parts:
            first.setdefault(name, lines[key].step)
    hidden = {"memory", "lr"} if "optimizer" in grid else {"memory"}  # the optimizer's state has the rate
    order = {public_name(name): at for at, name in enumerate(AFTER_A_BODY)}
    spans = [[key[1] for key in keys] for _, keys in groupby(places, lambda key: places[key])]
    rows = [
        {"name": name, "first": first.get(name), "stretches": list(_stretches(grid[name], spans))}
        for name in sorted(grid.keys() - hidden, key=lambda name: (order.get(name, len(order)), name))
    ]
    marked = min((places[key] for key in differing), default=None)
    steps = {
        "number": len(lines),
        "width": width,
        "ends": [key[1] for key in lines][:: max(len(lines) - 1, 1)],
    }
    return {**steps, "rows": rows, "marked": marked, "rank": runs.rank, **_curves(a, b, places)}


def _stretches(cells: Sequence[int], spans: Sequence[Sequence[int]]) -> Iterator[dict[str, Any]]:
    """Yields the cells of a kind that stand together, with their steps."""
    at = 0
    for number, group in groupby(cells):
        size = len(list(group))
        begin, end = spans[at][0], spans[at + size - 1][-1]
        steps = f"step {begin}" if begin == end else f"steps {begin} to {end}"
        if number:
            yield {"at": at, "size": size, "kind": list(_KINDS)[number], "steps": steps}
        at += size


def _curves(a: Record, b: Record, places: Mapping[Any, int]) -> dict[str, Any]:
    losses = [{key: _loss(run.steps.get(key)) for key in places} for run in (a, b)]
    finite = [one for values in losses for one in values.values() if math.isfinite(one)]
    if not finite:
        return {"curves": None}
    bottom, top = min(finite), max(finite)
    apart = [(abs(one - losses[1][key]), key[1]) for key, one in losses[0].items()]
    far, step = max((one for one in apart if math.isfinite(one[0])), default=(0.0, 0))
    scale = math.log if 0 < 100 * bottom < top else float
    curves = [" ".join(_path(values, places, scale, bottom, top)) for values in losses]
    ends = {"bottom": f"{bottom:.4g}", "top": f"{top:.4g}", "far": f"{far:.3g}", "far_step": step}
    return {"curves": curves, "scale": "log of loss" if scale is math.log else "loss", **ends}


def _loss(line: RecordLine | None) -> float:
    """Returns the last loss of a step; NaN without one."""
    try:
        return float.fromhex(line.values["loss"][-1]) if line is not None else math.nan
    except (KeyError, IndexError, TypeError, ValueError):
        return math.nan


def _path(
    losses: Mapping[Any, float], places: Mapping[Any, int], scale: Callable[[float], float], *ends: float
) -> Iterator[str]:
    """Yields an SVG path: of each cell its first, lowest, highest and last loss; a gap where it has none."""
    command, (bottom, top) = "M", map(scale, ends)
    for at, keys in groupby(places, lambda key: places[key]):
        values = [losses[key] for key in keys if math.isfinite(losses[key])]
        command = command if values else "M"
        for value in dict.fromkeys((values[0], min(values), max(values), values[-1]) if values else ()):
            height = 95 - 90 * (scale(value) - bottom) / ((top - bottom) or 1)
            yield f"{command}{at + 0.5:g} {height:.2f}" + "h0" * (command == "M")  # so that one is a dot
            command = "L"


# The first op.


def _tensors(ops: Sequence[Mapping[str, Any] | None]) -> list[tuple[str, str, str, str]]:
    """Returns (name, type and shape, digests in both runs) of what an op was given and gave."""
    sides: list[dict[str, tuple[str, str]]] = []
    for op in ops:
        side = {}
        for name, tensors in (("input", (op or {}).get("i", ())), ("output", (op or {}).get("o", ()))):
            for number, one in enumerate(tensors):
                kind, digest = (f"{one[0]} {one[1]}", one[2]) if one else ("", "written by nobody")
                side[f"{name} {number}"] = kind, digest
        side |= {f"number {at}": ("", readable_number(one)) for at, one in enumerate((op or {}).get("s", ()))}
        side |= {"random generator": ("", op["g"])} if op and "g" in op else {}
        sides.append(side)
    rows = [(name, *(side.get(name, ("", "-")) for side in sides)) for name in sides[0] | sides[1]]
    return [
        (name, " | ".join(dict.fromkeys((one[0], other[0]))), one[1], other[1]) for name, one, other in rows
    ]
