"""`verify --junit` and `--markdown`: each row as a test case, and a summary of a job that GitHub renders."""

import json
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from samebits.audit._first_difference import Difference
from samebits.audit._verify.check_plan import Check, ProcessVariation
from samebits.audit._verify.check_process import Request
from samebits.audit._verify.report_files import junit, markdown
from samebits.audit._verify.verify_report import CheckRow, VerifyReport

AGAIN, KILL = (
    Check("run-again", "run again", "hash seed | speed"),
    Check("kill", "killed mid-epoch, resumed", processes=(ProcessVariation(),)),
)
IDLE = Check("workers", "0 loader workers", does_not_apply="the script makes no loader")
MEASURED = Check("threads", "1 thread", promised=False)
DIFFERS = CheckRow(KILL, 8, Difference(3, "optimizer", ("0.momentum_buffer",)))
EQUAL = (CheckRow(AGAIN, 8), CheckRow(KILL, 8), CheckRow(IDLE), CheckRow(MEASURED, 8))
ERROR = "a process raised: ResumeMismatchError: a|b <i> differs\nTo save it:\n    run.add('ema', ema)  # ```"
PLAIN = """
import os, torch
torch.manual_seed(0 if {seeded} else os.getpid())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def reported(*rows, **options):
    request = Request("train.py", args=("--lr", "a_b*c"), seed=3, within=30, **options)
    return VerifyReport(request, "xxh3-128:0", {}, rows, ("a note <b>",), left_out=(Check("cpu", "a CPU"),))


def outcomes(text):
    """The suite, and of each test case its outcome."""
    suite = ET.fromstring(text).find("testsuite")
    kinds = {case.get("name"): case[0].tag if len(case) else "passed" for case in suite.iter("testcase")}
    for counter, kind in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert int(suite.get(counter)) == [*kinds.values()].count(kind)
    assert int(suite.get("tests")) == len(kinds)
    return suite, kinds


def rendered(text):
    return MarkdownIt("gfm-like", {"linkify": False}).render(text)


def test_a_row_is_a_test_case():
    """What the JSON calls proven has passed; what does not apply, is only measured or was left out is skipped with the reason."""
    report = reported(*EQUAL)
    suite, kinds = outcomes(junit(report))
    assert [name for name, kind in kinds.items() if kind == "passed"] == report.to_dict()["proven"]
    reasons = {case.get("name"): case[0].get("message") for case in suite.iter("testcase") if len(case)}
    assert reasons == {
        "0 loader workers": "the script makes no loader",
        "1 thread": "measured, not promised; equal",
        "a CPU": "left out by --within 30",
    }
    values = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert values == {"final": "xxh3-128:0", "seed": "3", "verdict": report.verdict()}
    assert "note: a note <b>" in suite.find("system-out").text


def test_a_row_that_differs_is_a_failure():
    """Its message is the first difference, its text has the cure and the output; the equal row of before passed (control)."""
    report = reported(CheckRow(AGAIN, 8), replace(DIFFERS, output="last \x1b[31mline\x00"))
    suite, kinds = outcomes(junit(report))
    failure = suite.find("testcase/failure")
    assert kinds == {"run again": "passed", KILL.name: "failure", "a CPU": "skipped"}
    assert failure.get("message") == DIFFERS.result() and "step 3" in failure.get("message")
    assert report.verdict() in failure.text and "last ?[31mline?" in failure.text
    assert outcomes(junit(reported(*EQUAL)))[1][KILL.name] == "passed"


@pytest.mark.parametrize(
    ("report", "exit_code", "errors"),
    [
        (reported(*EQUAL), 0, 0),
        (reported(CheckRow(AGAIN, 8), replace(DIFFERS, check=MEASURED)), 0, 0),
        (reported(CheckRow(AGAIN, 8), DIFFERS), 1, 0),
        (reported(replace(DIFFERS, check=AGAIN), replace(DIFFERS, overshadowed=True)), 1, 0),
        (reported(CheckRow(AGAIN, 8), CheckRow(KILL, 8, failed=ERROR)), 1, 0),
        (reported(CheckRow(AGAIN, 8), CheckRow(KILL, could_not="the kill had no effect")), 2, 1),
        (reported(*EQUAL, require=("workers",)), 2, 1),
        (reported(CheckRow(IDLE), groups=("workers",)), 2, 1),
    ],
)
def test_a_reader_of_junit_sees_what_the_exit_code_says(report, exit_code, errors):
    """No failure and no error exactly if the exit code is 0; what could not be checked is an error."""
    suite, kinds = outcomes(junit(report))
    assert report.exit == exit_code and int(suite.get("errors")) == errors
    assert (exit_code == 0) == ({"failure", "error"}.isdisjoint(kinds.values()))


def grammar(text):
    """Of each element the names of its attributes and of the elements in it."""
    root = ET.fromstring(text)
    found = {root.tag: {*root.attrib}}
    for one in root.iter():
        found.setdefault(one.tag, set()).update(one.attrib, (child.tag for child in one))
    return found


def test_its_elements_are_those_of_pytest(tmp_path):
    """Each element and attribute is one of a file that pytest writes, or of Ant's and Jenkins' schema (control: another is seen)."""
    (tmp_path / "test_three.py").write_text(
        "import pytest\ndef test_a(record_testsuite_property):\n    record_testsuite_property('a', 1)\n    print(2)\n"
        "def test_b():\n    assert False\ndef test_c():\n    pytest.skip('c')\ndef test_d(none):\n    pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-o", "junit_logging=all"]
    subprocess.run([*command, "--junit-xml", "out.xml"], cwd=tmp_path, capture_output=True)
    pytests = grammar((tmp_path / "out.xml").read_text())
    for tag, name in (("failure", "type"), ("error", "type"), ("testsuite", "system-out")):
        pytests[tag].add(name)  # these are in the schemas of Ant and Jenkins
    rows = (CheckRow(AGAIN, 8), DIFFERS, CheckRow(IDLE), CheckRow(Check("busy", "busy"), could_not="no"))
    ours = grammar(junit(reported(*rows)))
    assert {"failure", "error", "skipped", "property"} <= {*ours}
    assert all(names <= pytests[tag] for tag, names in ours.items()), (ours, pytests)
    assert not all(
        names <= pytests.get(tag, set()) for tag, names in grammar("<testsuites row='1'/>").items()
    )


def test_markdown_is_the_table_of_a_job():
    """Rendered as GitHub does: verdict, a table with each row that applies, notes, the digest; no mark of a text is read."""
    report = reported(*EQUAL)
    page = rendered(markdown(report))
    assert "<strong>VERIFIED</strong>: the same bits in all 8 steps" in page
    assert page.count("<tr>") == 1 + 3 and "<td>hash seed | speed</td>" in page
    assert "train.py --lr a_b*c</h2>" in page and "<li>note: a note &lt;b&gt;</li>" in page
    assert "does not apply: loader workers (the script makes no loader)" in page
    assert "<code>xxh3-128:0</code>, <code>--seed 3</code>" in page and "<td><strong>" not in page


def test_markdown_shows_a_difference_and_the_lines_to_type():
    """The row that differs is bold, an error's lines stand in a block of code whatever they hold."""
    page = rendered(markdown(reported(CheckRow(AGAIN, 8), DIFFERS)))
    assert f"<td><strong>{DIFFERS.result()}</strong></td>" in page and "NOT REPRODUCIBLE" in page
    page = rendered(
        markdown(reported(CheckRow(AGAIN, 8), CheckRow(KILL, 8, failed=ERROR, output="| last |")))
    )
    assert "a|b &lt;i&gt; differs</strong></td>" in page
    assert "To save it:\n    run.add('ema', ema)  # ```" in page and "| last |\n</code>" in page


@pytest.mark.slow
@pytest.mark.parametrize("seeded", [True, False])
def test_both_files_are_written_by_the_command(tmp_path, seeded):
    """JUnit and JSON agree, Markdown is appended to what the file has; an unseeded script fails in both (control)."""
    (tmp_path / "train.py").write_text(PLAIN.format(seeded=seeded))
    (tmp_path / "summary.md").write_text("# before\n")
    files = ["--json", "out.json", "--junit", "out.xml", "--markdown", "summary.md"]
    command = [
        sys.executable,
        "-m",
        "samebits",
        "verify",
        "--no-find-op",
        "--checks",
        "run-again",
        *files,
        "train.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == (0 if seeded else 1), done.stderr
    proven = json.loads((tmp_path / "out.json").read_text())["proven"]
    _, kinds = outcomes((tmp_path / "out.xml").read_text())
    assert kinds == {"run again": "passed" if seeded else "failure"} and (proven == ["run again"]) == seeded
    summary = (tmp_path / "summary.md").read_text()
    assert summary.startswith("# before\n## samebits verify train.py\n")
    assert ("**REPRODUCED**" if seeded else "**NOT REPRODUCIBLE**") in summary


@pytest.mark.slow
def test_a_run_without_a_result_leaves_no_report_of_an_earlier_one(tmp_path):
    """A script that raises removes old JSON and JUnit, and no other file; a wrong option removes nothing."""
    (tmp_path / "train.py").write_text("raise ValueError('no data')\n")
    report = reported(*EQUAL)
    old = {"out.json": json.dumps(report.to_dict(), indent=2), "out.xml": junit(report), "summary.md": "old"}
    for name, text in old.items():
        (tmp_path / name).write_text(text)
    files = ["--json", "out.json", "--junit", "out.xml", "--markdown", "summary.md"]
    for more, left in ((["--markdown", "none/summary.md"], [*old]), ([], ["summary.md"])):
        command = [sys.executable, "-m", "samebits", "verify", "--no-find-op", *files, *more, "train.py"]
        assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 2
        assert [name for name in old if (tmp_path / name).exists()] == left
    assert (tmp_path / "summary.md").read_text() == "old"
    source = (tmp_path / "train.py").read_text()
    command = [sys.executable, "-m", "samebits", "verify", "--no-find-op", "--json", "train.py", "train.py"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 2
    assert (tmp_path / "train.py").read_text() == source
