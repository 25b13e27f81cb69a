"""The report as JUnit XML, for readers of tests, and as Markdown, for the summary of a job."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from xml.etree import ElementTree as ET

from samebits.audit._verify.verify_report import COULD_NOT_RUN, CheckRow, VerifyReport
from samebits.audit._verify.verify_table import bits_version, lines_below

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""The characters that XML 1.0 does not have (https://www.w3.org/TR/xml/#charsets): the escape of a colour."""
_COUNTS = {"errors": "error", "failures": "failure", "skipped": "skipped"}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>|#~$&])")


def junit(report: VerifyReport) -> str:
    """Returns the report as JUnit XML: a test case for each row; no failure and no error only if `exit` is 0.

    Elements and attributes are pytest's (junit_family=xunit2). `time` is 0: no row is timed.
    """
    late = [CheckRow(replace(check, does_not_apply=report.no_time)) for check in report.left_out]
    found = [(row.check.name, *_outcome(row, report)) for row in (*report.rows, *late)]
    if report.exit == COULD_NOT_RUN and not any(kind == "error" for _, kind, *_ in found):
        found.append(("verdict", "error", report.verdict(), ""))
    kinds = [kind for _, kind, *_ in found]
    root = ET.Element("testsuites", name="samebits verify")
    suite = ET.SubElement(root, "testsuite", name="samebits verify", tests=str(len(found)))
    suite.attrib.update({name: str(kinds.count(kind)) for name, kind in _COUNTS.items()})
    suite.attrib.update(time="0", timestamp=datetime.now(UTC).isoformat(timespec="seconds"))
    properties = ET.SubElement(suite, "properties")
    values = {"final": report.final, "seed": str(report.request.seed), "verdict": report.verdict()}
    for name, value in values.items():
        ET.SubElement(properties, "property", name=name, value=value)
    for name, kind, message, text in found:
        case = ET.SubElement(suite, "testcase", classname=report.request.script, name=name, time="0")
        if kind:
            ET.SubElement(case, kind, type="samebits.verify", message=message).text = text or None
    ET.SubElement(suite, "system-out").text = "\n".join(lines_below(report))
    ET.indent(root)
    return _NO_XML.sub("?", ET.tostring(root, encoding="unicode")) + "\n"


def _outcome(row: CheckRow, report: VerifyReport) -> tuple[str, str, str]:
    """Returns (element, message, text) of a row; without an element it passed: it counts, and is equal."""
    if row.decides and row.equal:
        return "", "", ""
    if row.decides and row.equal is False:
        return "failure", row.result(), f"{row.cause()}\n\n{report.verdict()}\n\n{row.output}".rstrip()
    if row.decides and row.could_not:
        return "error", row.could_not, row.output
    return "skipped", row.check.does_not_apply or "; ".join((*row.notes(), row.result())), ""


def markdown(report: VerifyReport) -> str:
    """Returns the report as GitHub's Markdown: verdict, the rows that apply, notes, the final digest."""
    word, _, sentence = report.verdict().partition(":")
    sentence, _, to_type = sentence.partition("\n")
    failed = next((row for row in report.rows if row.output), None)
    rows = [_table_row(row) for row in report.rows if row.applies]
    parts = [
        f"## samebits verify {_escape(' '.join((report.request.script, *report.request.args)))}",
        f"**{word}**: {_escape(sentence)}",
        _fence(to_type),
        "\n".join(("| check | varied | steps | result |", "|---|---|---:|---|", *rows)),
        f"Output of '{_escape(failed.check.name)}':\n\n{_fence(failed.output)}" if failed else "",
        "\n".join(f"- {_escape(line)}" for line in lines_below(report)),
        f"Final model digest: `{report.final}`{bits_version(report)}, `--seed {report.request.seed}`",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table_row(row: CheckRow) -> str:
    bold = "**" if row.decides and row.equal is False else ""
    cells = [_escape(cell) for cell in (row.check.name, row.check.varied, str(row.steps_compared or "-"))]
    return f"| {' | '.join((*cells, bold + _escape(row.result()) + bold))} |"


def _escape(text: str) -> str:
    """Returns the text in one line, and escapes each character that Markdown or GitHub's formulas read."""
    return " ".join(_MARKDOWN.sub(r"\\\1", text).split())


def _fence(text: str) -> str:
    """Returns a block of code that holds any text; empty without one."""
    ticks = "`" * max(3, *(1 + len(run) for run in ("", *re.findall("`+", text))))
    return f"{ticks}text\n{text.rstrip()}\n{ticks}" if text.strip() else ""
