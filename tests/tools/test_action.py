"""action.yml, the GitHub Action: its step runs here in the shell that GitHub takes, with the files that GitHub gives."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

yaml = pytest.importorskip("yaml")
GITHUB_SHELL = ("bash", "--noprofile", "--norc", "-eo", "pipefail")
SCRIPT = """
import os, sys, torch
assert sys.argv[1:] == {args}, sys.argv
torch.manual_seed({seed})
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def action(root):
    return yaml.safe_load((root / "action.yml").read_text())


@pytest.fixture
def step(action, root, tmp_path):
    """Runs the action's step with inputs; gives exit code, log, outputs, and the job's summary."""

    def run(path=Path(sys.executable).parent, **inputs):
        (one,) = action["runs"]["steps"]
        values = {name: value.get("default", "") for name, value in action["inputs"].items()} | inputs
        given = {
            name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: values[found[1]], value)
            for name, value in one["env"].items()
        }
        files = {name: tmp_path / name for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
        for file in files.values():
            file.write_text("")
        runner = {"RUNNER_TEMP": tmp_path, "GITHUB_ACTION_PATH": root, "PATH": f"{path}:/usr/bin:/bin"}
        (tmp_path / "step.sh").write_text(one["run"])
        done = subprocess.run(
            [*GITHUB_SHELL, str(tmp_path / "step.sh")], cwd=tmp_path, capture_output=True, text=True, timeout=600,
            env=os.environ | given | {name: str(value) for name, value in (runner | files).items()},
        )  # fmt: skip
        outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
        assert int(outputs["exit-code"]) == done.returncode, done.stderr
        return done.returncode, done.stdout, outputs, files["GITHUB_STEP_SUMMARY"].read_text()

    return run


def test_each_input_and_output_of_the_action_is_used(action):
    """The step takes each input as a variable, never as a part of the script; each output is written by it."""
    (one,) = action["runs"]["steps"]
    assert {re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value)[1] for value in one["env"].values()} == {
        *action["inputs"]
    }
    assert "${{" not in one["run"] and one["shell"] == "bash"
    assert {value["value"] for value in action["outputs"].values()} == {
        f"${{{{ steps.{one['id']}.outputs.{name} }}}}" for name in action["outputs"]
    }
    assert {*re.findall(r'"([\w-]+)=\$', one["run"])} == {*action["outputs"]}
    assert all(value["description"] for value in (action["inputs"] | action["outputs"]).values())


def test_the_workflow_of_the_page_calls_the_action_as_it_is(action, root):
    """The first job of docs/how-to/ci.md gives inputs that exist, those that are required too, and reads outputs that exist."""
    page = (root / "docs" / "how-to" / "ci.md").read_text()
    workflow = re.search(r"```yaml\n(# .github.*?)```", page, re.DOTALL)[1]
    (job,) = yaml.safe_load(workflow)["jobs"].values()
    (called,) = (one for one in job["steps"] if one.get("id") == "verify")
    required = {name for name, value in action["inputs"].items() if value.get("required")}
    assert required <= {*called["with"]} <= {*action["inputs"]}
    assert {*re.findall(r"steps\.verify\.outputs\.([\w-]+)", workflow)} <= {*action["outputs"]}
    assert all(f"`{name}`" in page for name in (*action["inputs"], *action["outputs"]))


def test_a_wrong_input_is_refused_before_anything_is_run(step, tmp_path):
    """Exit code 2, and log, summary and verdict have the reason: an option, a quote, a script, a missing samebits."""
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    wrong = {
        "run: 'yes': type true or false.": {"run": "yes"},
        "close each quote": {"args": '--name "a'},
        "--steps 'x': must be a whole number": {"steps": "x"},
        "samebits is not installed": {"path": tmp_path},
    }
    for reason, inputs in wrong.items():
        code, log, outputs, summary = step(script="train.py", **inputs)
        assert code == 2 and all(reason in text for text in (log, summary, outputs["verdict"])), (reason, log)
        assert outputs["verdict"].startswith("NOT VERIFIED: ") and summary.startswith(
            "## samebits verify train.py\n"
        )
    code, log, *_ = step(script="--help")
    assert code == 2 and "'--help' reads as an option. Type ./--help" in log
    assert "there is no file none.py" in step(script="none.py")[1]
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "inputs", "code", "word"),
    [
        ("0", {"run": "true"}, 0, "REPRODUCED"),
        ("os.getpid()", {}, 1, "NOT REPRODUCIBLE"),
        ("0", {"require": "kill"}, 2, "NOT VERIFIED"),
    ],
)
def test_the_step_verifies_a_script(step, tmp_path, seed, inputs, code, word):
    """Exit code, verdict, summary and reports agree; arguments come whole, one with a `$(...)` too, which is not run."""
    arguments = ["--name", "a b", "$(touch ran)"]
    (tmp_path / "train.py").write_text(SCRIPT.format(seed=seed, args=arguments))
    found, log, outputs, summary = step(
        script="train.py", steps="4", args="--name 'a b' '$(touch ran)'", **inputs
    )
    assert found == code, log
    assert outputs["verdict"].startswith(f"{word}: ") and f"**{word}**: " in summary and word in log
    reports = Path(outputs["reports"])
    report = json.loads((reports / "verify.json").read_text())
    assert report["exit"] == code and report["args"] == arguments
    suite = ET.parse(reports / "verify.xml").getroot().find("testsuite")
    assert (int(suite.get("failures")) > 0, int(suite.get("errors")) > 0) == (code == 1, code == 2)
    assert (reports / "verify.txt").read_text() == log and not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_script_that_raises_is_shown_with_its_output(step, tmp_path):
    """Its traceback is in the log and in the summary, and no report of another time is taken for this one."""
    (tmp_path / "train.py").write_text("import torch\nraise ValueError('no data')\n")
    code, log, outputs, summary = step(script="train.py")
    assert code == 2 and outputs["verdict"].startswith(
        "NOT VERIFIED: train.py: a process raised: ValueError: no data"
    )
    for text in (log, summary):
        assert "line 2, in <module>" in text and "ValueError: no data" in text
    assert [file.name for file in Path(outputs["reports"]).iterdir()] == ["verify.txt"]
