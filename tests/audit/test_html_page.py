"""`--html`: the page of a result: its strip of steps, its curves, its first op; escaped, and rendered by Chromium."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from samebits.audit._comparison import ComparedRuns, compare
from samebits.audit._first_difference import Difference
from samebits.audit._html_page import CELLS, diff_page, verify_page
from samebits.audit._record.record_file import Record, RecordLine
from samebits.audit._trace.causes import Cause, Replay
from samebits.audit._trace.first_op import FirstOp, SourceLine
from samebits.audit._trace.search import FoundOp
from samebits.audit._verify.check_plan import Check, ProcessVariation
from samebits.audit._verify.check_process import Request
from samebits.audit._verify.verify_report import CheckRow, VerifyReport

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AGAIN = Check("run-again", "run again", "hash seed | speed")
KILL = Check("kill", "killed mid-epoch, resumed", "a kill <b>", processes=(ProcessVariation(),))
EVIL = "<script>console.error('ran')</script>\"'><img src=x onerror=console.error(1)>&{{ 7*7 }}\x1b\udc80"
ENVIRONMENT = {"python": "3.11.7", "threads": 2, "flags": {"tf32": False}}
START = {"script": "train.py", "level": "state", "every": 1, "environment": ENVIRONMENT, "generators": {}}


def record(steps, differs_from=None, number=0, **environment):
    """The record of a run, whose loss, optimizer and model are others from a step on."""
    lines = {}
    for step in range(steps):
        other = "b" if differs_from is not None and step >= differs_from else "a"
        loss = 1 / (1 + step) + (1e-3 * (1 + step - differs_from) if other == "b" else 0)
        values = {
            "batch": f"x{step}",
            "loss": [float(loss).hex()],
            "lr": [(0.1).hex()],
            "optimizer": f"{other}{step}",
        }
        values |= {"model": f"{other}{step}", "generators": "g"} | ({"eval": "e"} if step % 50 == 49 else {})
        lines["loop", step] = RecordLine(step, "loop", 0, step, values, {})
    end = {
        "steps": steps,
        "final": f"xxh3-128:{number}",
        "trains": True,
        "environment": ENVIRONMENT | environment,
    }
    return Record(Path(f"run{number}/record.jsonl"), START, steps=lines, end=end)


def op(digest, **changed):
    tensors = [["float32", [64, 64], "11" * 8, 3], ["int64", [16], "22" * 8, None]]
    return {
        "n": "aten::index_put_", "p": "backward", "m": "model.encoder.3", "at": "/home/me/train.py:57", "i": tensors,
        "s": [0.5.hex(), "True"], "o": [["float32", [64, 64], digest * 8]], "flags": {}, **changed,
    }  # fmt: skip


def found(name="train.py"):
    """A sum in no order, as the search finds it."""
    replays = (
        Replay("as it was", tuple("abacadaabacabaabacda")),
        Replay("with 1 thread", ("a",) * 20),
        Replay("with the switch", (), "RuntimeError: refused"),
    )
    cause = Cause("a sum in no order: 4 different results in 20 calls", "enable_op_determinism()", True, replays,
                  ("first run: at most 1.5 ulps from the exact value",))  # fmt: skip
    first = FirstOp("op", (op("33"), op("44")), 9, SourceLine(f"/home/me/{name}", 57, 57))
    return FoundOp("run again", first, cause, 41)


def report(rows, runs=None, script="train.py", **more):
    request = Request(script, args=("--lr", "0.1"), seed=3)
    return VerifyReport(request, "xxh3-128:0", ENVIRONMENT, rows, runs=runs, **more)


def runs_of(steps, differs_from=None, **environment):
    names = "the first run", "'run again'"
    return ComparedRuns(names, (record(steps), record(steps, differs_from, 1, **environment)))


def failed_page(steps, differs_from, name="train.py", note=""):
    difference = Difference(differs_from, "loss", (), "1.0 against 2.0", (("model", ("0.weight",)),))
    rows = CheckRow(AGAIN, steps, difference), CheckRow(KILL, steps, overshadowed=True)
    runs = runs_of(steps, differs_from, threads=1)
    return verify_page(report(rows, runs, name, found=found(name), notes=tuple(filter(None, [note]))))


def equal_page(steps=100):
    return verify_page(report((CheckRow(AGAIN, steps), CheckRow(KILL, steps)), runs_of(steps)))


def text_of(page):
    """What stands in the page outside of tags and styles."""
    body = page.decode("ascii").partition("<body>")[2]
    return " ".join(re.sub(r"<[^>]*>", " ", body).split())


def strip_of(page):
    """Of each component the (first cell, number, kind) in its row."""
    found = re.findall(r'<svg viewBox[^>]*role="img" aria-label="([^:]*):.*?</svg>', page.decode(), re.DOTALL)
    rows = re.findall(r'<svg viewBox[^>]*role="img".*?</svg>', page.decode(), re.DOTALL)
    cells = [[(int(one.get("x")), int(one.get("width")), one.get("class")) for one in ET.fromstring(row).iter("rect")]
             for row in rows]  # fmt: skip
    return dict(zip(found, cells, strict=True))


def test_a_failed_verify_is_told_from_the_verdict_to_the_replays():
    """Verdict, rows, first op, its inputs, each replay's results, the distances and the settings that differ are there."""
    page = failed_page(100, 41)
    text = text_of(page)
    for words in [
        "NOT REPRODUCIBLE run again: step 41", "aten::index_put_ gave other bits from equal inputs",
        "ABACADAABACABAABACDA", "AAAAAAAAAAAAAAAAAAAA", "RuntimeError: refused", "at most 1.5 ulps", "33333333", "44444444",
        "not run: 'run again'".replace("'", "&#39;"), "100 steps of the first run and of &#39;run again&#39;.", "differs first at step 41",
        "2 settings are equal",
    ]:  # fmt: skip
        assert words in text, words
    assert text.index("NOT REPRODUCIBLE") < text.index("check varied") < text.index("called alone")
    assert "NOT REPRODUCIBLE" not in text_of(equal_page()) and "Equal in all 3 settings" in text_of(
        equal_page()
    )


def test_the_strip_shows_which_components_differ_from_which_step_on():
    """Of 100 steps each is a cell; loss, optimizer and model differ from 41, the batch does not; none of equal runs does."""
    strip = strip_of(failed_page(100, 41))
    assert list(strip) == ["generators", "batch", "loss", "optimizer", "model", "eval"]
    assert strip["model"] == strip["loss"] == [(0, 41, "equal"), (41, 59, "differs")]
    assert strip["batch"] == [(0, 100, "equal")] and strip["eval"] == [(49, 1, "equal"), (99, 1, "equal")]
    assert all(kind == "equal" for row in strip_of(equal_page()).values() for *_, kind in row)


@pytest.mark.parametrize(
    ("steps", "differs_from"), [(5_000, 4_999), pytest.param(100_000, 99_999, marks=pytest.mark.slow)]
)
def test_one_step_of_100000_is_seen(steps, differs_from):
    """Many steps are CELLS cells, in a page of less than 50 kB, and the last step alone makes its cell one that differs."""
    page = failed_page(steps, differs_from)
    assert len(page) < 50_000
    assert strip_of(page)["model"] == [(0, CELLS - 1, "equal"), (CELLS - 1, 1, "differs")]
    assert f"differs first at step {differs_from}" in text_of(page)
    assert f"A cell is up to {-(-steps // CELLS)} steps" in text_of(page)
    assert (
        "A cell is" not in text_of(failed_page(CELLS, 9))
        and len(strip_of(failed_page(CELLS, 9))["model"]) == 2
    )


def test_a_spike_of_the_loss_stays_in_the_curve():
    """One loss of 4,000 that is ten times the highest is the curve's highest point; without it, it is another (control)."""
    runs = runs_of(4_000)
    lines = runs.records[1].steps
    plain = verify_page(report((CheckRow(AGAIN, 9),), runs))
    lines["loop", 777] = replace(
        lines["loop", 777], values=lines["loop", 777].values | {"loss": [(10.0).hex()]}
    )
    lines["loop", 3000] = replace(lines["loop", 3000], values=lines["loop", 3000].values | {"loss": ["nan"]})
    page = verify_page(report((CheckRow(AGAIN, 9),), runs))
    assert "L46.5 5.00 " in page.decode() and "46.5 5.00" not in plain.decode()
    assert "at most 10 apart, at step 777" in text_of(page) and "the same losses" in text_of(plain)


def test_a_page_without_steps_or_runs():
    """Runs without a step, a report without runs, and an inference without losses are pages, too."""
    none = ComparedRuns(("a", "b"), (record(0), record(0)))
    assert "No step was recorded" in text_of(diff_page(compare(*none.records), ("a", "b"), none))
    assert 'id="steps"' not in verify_page(report((CheckRow(AGAIN, could_not="no step"),))).decode()
    runs = runs_of(3)
    for one in runs.records:
        for key, line in one.steps.items():
            one.steps[key] = replace(line, values={"output": "o"})
    page = verify_page(report((CheckRow(AGAIN, 3),), runs)).decode()
    assert 'class="a" d="M0' not in page and strip_of(page.encode()) == {"output": [(0, 3, "equal")]}
    runs = ComparedRuns(("a", "b"), (record(9), record(5)))
    page = diff_page(compare(*runs.records), ("a", "b"), runs)
    assert strip_of(page)["model"] == [(0, 5, "equal"), (5, 4, "alone")]


def test_no_name_becomes_markup():
    """A script's name, a note and a check's text with tags, quotes and template marks stay text; the page is ASCII."""
    page = failed_page(5, 2, EVIL, EVIL).decode("ascii")
    assert "<script" not in page and "<img" not in page and page.count("{{ 7*7 }}") >= 3
    assert page.count("&lt;script&gt;console.error") >= 3 and "a kill <b>" not in page
    assert "default-src 'none'" in page


def rendered(tmp_path, page, width, *, dark=False):
    """(text, width of what is drawn, colour of the paper, errors on the console) of a page in a frame of a width in Chromium."""
    probe = """<!doctype html><body style="margin: 0"><iframe id=f style="border: 0; width: %dpx; height: 900px"></iframe><script>
    const frame = document.getElementById('f')
    frame.onload = () => { const page = frame.contentDocument, root = page.documentElement
      const said = {width: root.scrollWidth, paper: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
        text: page.body.innerText, marks: page.querySelectorAll('script, img').length,
        tabs: [...page.querySelectorAll('a[href], summary')].map(one => one.innerText)}
      const out = document.createElement('pre'); out.id = 'said'; out.textContent = JSON.stringify(said); document.body.append(out) }
    frame.srcdoc = %s</script>"""  # fmt: skip
    text = json.dumps(page.decode("ascii")).replace("</", "<\\/").replace("<!--", "<\\!--")
    file = tmp_path / "probe.html"
    file.write_text(probe % (width, text))
    blink = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}", blink,
               "--enable-logging=stderr", f"--window-size={max(width, 800)},1000", "--dump-dom", file.as_uri()]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = json.loads(ET.fromstring(re.search(r'<pre id="said">.*?</pre>', ended.stdout, re.DOTALL)[0]).text)
    return said, [line for line in ended.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_chromium_draws_it_at_three_widths_in_both_colours(tmp_path):
    """No scrolling sideways at 390, 1280 and 1920, dark and light paper, nothing on the console, and nothing of a name runs."""
    pages = [
        failed_page(100, 41),
        failed_page(100_000, 60_000),
        failed_page(5, 2, EVIL, EVIL * 20),
        equal_page(),
    ]
    for page, width, dark in zip(pages, (390, 1280, 390, 1920), (False, True, True, False), strict=True):
        said, errors = rendered(tmp_path, page, width, dark=dark)
        assert said["width"] <= width and errors == [] and said["marks"] == 0
        assert said["paper"] == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")
        assert "REPRODUC" in said["text"] or "VERIFIED" in said["text"]
        assert {"Checks", "Steps", "Environments"} < {*said["tabs"]}
    page = failed_page(5, 2).replace(
        b"<main>", b"<main><div style='width: 3000px'>x</div><script>console.error('ran')</script>"
    )
    page = page.replace(b"default-src 'none'", b"default-src *")
    assert rendered(tmp_path, page, 390)[0]["width"] > 390  # control
    said, errors = rendered(tmp_path, re.sub(b"<meta http-equiv[^>]*>", b"", page), 390)
    assert said["marks"] == 1 and any("ran" in line for line in errors)


SCRIPT = """
import os, sys, torch
torch.manual_seed(0 if sys.argv[1] == "same" else os.getpid())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_the_commands_write_it(tmp_path):
    """`verify` and `diff` write pages of real runs, and say the same as on the terminal; one for no folder is refused."""
    (tmp_path / "train.py").write_text(SCRIPT)

    def samebits(*words):
        command = [sys.executable, "-m", "samebits", *words]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ}
        )

    verify = ["verify", "--checks", "run-again", "--no-find-op", "--html"]
    refused = samebits(*verify, "no/v.html", "train.py", "same")
    assert refused.returncode == 2 and "there is no folder" in refused.stderr
    assert samebits(*verify, "v.html", "train.py", "other").returncode == 1
    assert "NOT REPRODUCIBLE" in text_of((tmp_path / "v.html").read_bytes())
    assert any(
        kind == "differs" for row in strip_of((tmp_path / "v.html").read_bytes()).values() for *_, kind in row
    )
    assert samebits("run", "--record", "a", "train.py", "same").returncode == 0
    assert samebits("diff", "a", "a", "--html", "d.html").returncode == 0
    assert text_of((tmp_path / "d.html").read_bytes()).count("EQUAL") == 1
