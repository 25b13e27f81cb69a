"""A report as one self-contained HTML page: the graph as SVG, varying values in red, and the explanations."""

from __future__ import annotations

import os
from collections.abc import Iterator
from html import escape
from pathlib import Path

from samebits.replica._report.graph_picture import Box, Picture, picture_of
from samebits.replica._report.report import Report, check_report

WIDTH, HEIGHT, GAP_X, GAP_Y = 210, 38, 18, 30
"""Sizes of a box, and distances between boxes, in pixels."""
_LETTERS = 32
_SWEEPS = 6
_EXPLAINED = 20

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem; color: #1f2933; background: #fff }
pre { background: #f4f5f7; padding: .8rem; overflow-x: auto; border-left: 3px solid #c62828 }
.good { color: #1b7f3b } .bad { color: #c62828 } .graph { overflow: auto; border: 1px solid #d9dde3 }
svg text { font: 11px ui-monospace, monospace; fill: #1f2933 } svg .small { font-size: 9px; fill: #5b6673 }
.box { fill: #eef4fb; stroke: #7d97b5 } .varying { fill: #fdeaea; stroke: #c62828 }
.way { stroke-width: 2.5 } .input { rx: 18px }
path { fill: none; stroke: #9aa9ba } path.varying { stroke: #c62828; fill: none } path.way { stroke-width: 2.5 }
table { border-collapse: collapse } td, th { text-align: left; padding: .1rem .9rem .1rem 0 }
"""


def write_html(report: Report, file: str | os.PathLike[str]) -> None:
    """Writes a report as a page: verdict, explanations, the graph (see `graph_picture.LIMIT`), and the table of values.

    Raises:
        InvalidArgumentError: `report` is no report.
        OSError: the file cannot be written.

    Example:
        >>> from pathlib import Path
        >>> captured = samebits.replica.capture(lambda x: x + 1, torch.ones(2), world_size=4)
        >>> samebits.replica.write_html(samebits.replica.analyze(captured), "step.html")
        >>> "Replica-equal analysis" in Path("step.html").read_text()
        True
    """
    check_report("write_html(report, file)", report)
    Path(file).write_text("\n".join(_page(report)) + "\n", encoding="utf-8")


def _page(report: Report) -> Iterator[str]:
    drifting, picture = report.drifting, picture_of(report)
    verdict = f"{len(drifting)} state(s) drift apart" if drifting else "state stays as equal as declared"
    yield "<!doctype html><html lang=en><meta charset=utf-8><title>Replica-equal analysis</title>"
    yield f"<style>{_STYLE}</style><h1>Replica-equal analysis</h1>"
    ranks = f"{report.step.world_size} ranks, code run as {len(report.step.captured)} of them"
    yield f"<p><b class={'bad' if drifting else 'good'}>{verdict}</b>; {ranks}.</p>"
    for name in drifting[:_EXPLAINED]:
        yield f"<pre>{escape(report.explain_drift(name))}</pre>"
    if len(drifting) > _EXPLAINED:
        yield f"<p>and {len(drifting) - _EXPLAINED} more, in the table below.</p>"
    for one in report.findings:
        yield f"<pre>{escape(f'{one.kind}: {one.text}')}</pre>"
    yield (
        f"<h2>The step</h2><p>{escape(picture.note)}. Red: varies over ranks; thick: on the shortest way to what drifts; "
        "round: inputs. Point at a box for its ranks, its line and its members.</p>"
    )
    yield '<div class="graph">'
    yield from _svg(picture, report)
    yield "</div><h2>Values</h2><table><tr><th>value<th>kind<th>start<th>end</tr>"
    yield from _rows(report)
    yield "</table></html>"


def _rows(report: Report) -> Iterator[str]:
    text, drifting = report.partitions.text, set(report.drifting)
    for name, kind in report.step.kinds.items():
        start, end = text(report.starts[name].partition), text(report.ends[name].partition)
        row = "".join(f"<td>{escape(cell)}" for cell in (name, kind, start, end))
        yield f"<tr class=bad>{row}</tr>" if name in drifting else f"<tr>{row}</tr>"
    for name in report.step.output_names:
        yield f"<tr><td>{escape(name)}<td>output<td><td>{escape(text(report.values[name].partition))}</tr>"


def _svg(picture: Picture, report: Report) -> Iterator[str]:
    places = _box_positions(picture)
    width = max((x for x, _ in places), default=0) + WIDTH + GAP_X
    height = max((y for _, y in places), default=0) + HEIGHT + GAP_Y
    yield f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}">'
    for (one, other), varies in picture.lines.items():
        (x, y), (u, v) = places[one], places[other]
        way = varies and picture.boxes[one].on_path and picture.boxes[other].on_path
        classes = "varying way" if way else "varying" if varies else ""
        x, y, u, bend = x + WIDTH / 2, y + HEIGHT, u + WIDTH / 2, min((v - y - HEIGHT) / 2, 60)
        yield f'<path class="{classes}" d="M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {u:.0f} {v - bend:.0f} {u:.0f} {v:.0f}"/>'
    for box, (x, y) in zip(picture.boxes, places, strict=True):
        yield _box_svg(box, x, y, report)
    yield "</svg>"


def _box_svg(box: Box, x: float, y: float, report: Report) -> str:
    varies = box.partition != report.partitions.equal
    classes = ["box", *["varying"] * varies, *["way"] * box.on_path]
    classes += ["input"] * (box.kind in report.step.kinds.values())
    ranks, count = report.partitions.text(box.partition), len(box.members)
    title = box.title if count == 1 else f"{box.title} +{count - 1}"
    below = f"{box.kind}: {ranks}" if box.kind != "op" else box.where or ranks
    members = ", ".join(box.members[:30]) + (", ..." if count > 30 else "")
    tooltip = escape("\n".join(filter(None, (members, box.kind, ranks, box.where))))
    return (
        f'<g><title>{tooltip}</title><rect class="{" ".join(classes)}" x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" '
        f'rx="4"/><text x="{x + 8:.0f}" y="{y + 16:.0f}">{escape(_shorten(title, _LETTERS - 4))}</text>'
        f'<text class="small" x="{x + 8:.0f}" y="{y + 30:.0f}">{escape(_shorten(below, _LETTERS + 4))}</text></g>'
    )


def _shorten(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 2] + ".."


def _box_positions(picture: Picture) -> list[tuple[float, float]]:
    """Returns the upper left corner of each box: rows by depth (Sugiyama), each row in the order of its neighbours."""
    count = len(picture.boxes)
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for one, other in picture.lines:
        before[other].append(one)
        after[one].append(other)
    depth = [0] * count
    for box in range(count):
        depth[box] = max((depth[one] + 1 for one in before[box]), default=0)
    for box in range(count):
        if not before[box] and after[box]:  # an input is right above its first use
            depth[box] = min(depth[one] for one in after[box]) - 1
    rows: dict[int, list[int]] = {}
    for box in range(count):
        rows.setdefault(depth[box], []).append(box)
    at = {box: float(index) for row in rows.values() for index, box in enumerate(row)}
    for sweep in range(_SWEEPS):
        joined = after if sweep % 2 else before
        for level in sorted(rows, reverse=bool(sweep % 2)):
            _order_row(rows[level], joined, at)
    least = min(at.values(), default=0.0)
    return [
        (GAP_X + (at[box] - least) * (WIDTH + GAP_X), GAP_Y + depth[box] * (HEIGHT + GAP_Y))
        for box in range(count)
    ]


def _order_row(row: list[int], joined: list[list[int]], at: dict[int, float]) -> None:
    """Moves the boxes of a row below (above) the middle of their neighbours, at least one place apart."""
    wanted = {
        box: sum(at[one] for one in joined[box]) / len(joined[box]) if joined[box] else at[box] for box in row
    }
    row.sort(key=wanted.__getitem__)
    last = float("-inf")
    for box in row:
        at[box] = last = max(wanted[box], last + 1.0)
    shift = sum(at[box] - wanted[box] for box in row) / len(row)
    for box in row:
        at[box] -= shift
