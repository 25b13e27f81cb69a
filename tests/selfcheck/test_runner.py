"""The runner of `samebits selfcheck`: real processes that crash, hang and fault, on the CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samebits.errors import InvalidArgumentError
from samebits.selfcheck import rehearse, run, text
from samebits.selfcheck.case import equal, spoil_each
from samebits.selfcheck.report import SelfcheckReport

MACHINE = {"gpu": "a test", "torch": "0", "cuda": "0", "samebits": "0", "date": "2026-01-01"}


@pytest.fixture(autouse=True)
def own(monkeypatch):
    here = str(Path(__file__).parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]))
    monkeypatch.syspath_prepend(here)


def checked(folder, *names, seconds=200.0):
    return run(
        SelfcheckReport.at(folder, MACHINE),
        [f"own.{name}" for name in names],
        seconds,
        lambda _: None,
        device="cpu",
    )


def states(report, name):
    return {case["case"]: case["state"] for case in report.outcomes[f"own.{name}"].cases}


def test_what_holds_passes_with_its_figures(tmp_path):
    """A part whose cases hold is "passed", exit status 0, and the report has its figures and goals."""
    report = checked(tmp_path, "good")
    assert report.exit == 0 and states(report, "good") == {"equal": "passed", "again": "passed"}
    text.write(report)
    told = (tmp_path / "report.txt").read_text()
    assert "ratio 1.5" in told and "at least as fast: met" in told and "AS PROMISED" in told
    assert json.loads((tmp_path / "report.json").read_text())["exit"] == 0


def test_brackets_in_figures_are_text(tmp_path):
    """Names as `sum [float32]` stand whole in the text, and what looks like the end of a style does not end the check."""
    report = SelfcheckReport.at(tmp_path, MACHINE)
    figures = {"varied": "2 (sum [float32], norm [bfloat16 strided])", "why": "no [/such] thing"}
    case = {
        "case": "sum [red]",
        "state": "passed",
        "wrong": [],
        "figures": figures,
        "goals": {"[bold]": True},
    }
    report.outcome("good").cases.append(case)
    text.write(report)
    told = "".join((tmp_path / "report.txt").read_text().split())
    for whole in ("sum[float32]", "norm[bfloat16strided]", "no[/such]thing", "sum[red]", "[bold]:met"):
        assert whole in told, whole


@pytest.mark.slow
def test_a_crash_a_fault_and_a_hang_cost_one_case_each(tmp_path):
    """What kills, spoils or blocks a process fails its own case; those behind it run, in another process."""
    report = checked(tmp_path, "bad", "good")
    assert states(report, "bad") == {
        "first": "passed", "unequal": "failed", "crash": "failed", "behind the crash": "passed", "fault": "failed",
        "behind the fault": "passed", "fault of a launch": "failed", "behind the launch": "passed",
        "hang": "failed", "missing": "skipped", "last": "passed",
    }  # fmt: skip
    by_name = {case["case"]: case for case in report.outcomes["own.bad"].cases}
    pids = [
        by_name[name]["figures"]["pid"]
        for name in ("first", "behind the crash", "behind the fault", "behind the launch")
    ]
    assert len(set(pids)) == 4
    assert "-11" in by_name["crash"]["wrong"][0] and "limit" in by_name["hang"]["wrong"][0]
    assert by_name["missing"]["why"] == "needs no_such_package"
    assert report.exit == 1 and states(report, "good")["again"] == "passed"


@pytest.mark.parametrize("name", ["nothing", "unusable"])
def test_a_part_that_runs_no_case_fails(tmp_path, name):
    """A part without cases, or whose file does not load in its process, makes the exit status 1."""
    report = checked(tmp_path, name)
    assert report.exit == 1 and report.outcomes[f"own.{name}"].verdict in {"no case ran", "failed"}


@pytest.mark.slow
def test_the_next_call_goes_on_where_the_time_ended(tmp_path):
    """When the time is over the rest stays: the next call runs only what is left, and the report ends as one run's."""
    first = checked(tmp_path, "slow", seconds=6.0)
    done = len(first.outcomes["own.slow"].cases)
    assert first.exit == 1 and first.outcomes["own.slow"].verdict in {"not finished", "not run"}
    assert "The same command continues with them." in _shown(first)
    kept = [case["seconds"] for case in first.outcomes["own.slow"].cases]
    second = checked(tmp_path, "slow")
    assert second.exit == 0 and [case["seconds"] for case in second.outcomes["own.slow"].cases][:done] == kept
    assert len(second.outcomes["own.slow"].cases) == 4


@pytest.mark.slow
def test_a_killed_check_goes_on(tmp_path):
    """After SIGKILL of the check itself, its workers are gone, and the next call goes on."""
    code = (
        "import sys; from pathlib import Path; from samebits.selfcheck import run; from samebits.selfcheck.report import SelfcheckReport\n"
        f"run(SelfcheckReport.at(Path(sys.argv[1]), {MACHINE!r}), ['own.slow'], 100, lambda one: one.cases and print('on', flush=True), device='cpu')"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "on\n"
    process.kill()
    process.wait()
    report = checked(tmp_path, "slow")
    assert report.exit == 0 and len(report.outcomes["own.slow"].cases) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["output.txt", "report.json"]


def test_a_report_of_another_gpu_is_not_gone_on_with(tmp_path):
    """A folder with the report of another machine is refused by name, and left as it is."""
    checked(tmp_path, "good")
    before = (tmp_path / "report.json").read_bytes()
    with pytest.raises(InvalidArgumentError, match="another folder"):
        SelfcheckReport.at(tmp_path, {**MACHINE, "gpu": "another"})
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(InvalidArgumentError, match="no report"):
        SelfcheckReport.at(tmp_path, MACHINE)
    assert before


def test_a_rehearsal_finds_a_judge_that_sees_nothing():
    """A judge that lets a planted result pass, and a case without results, are named; a good part has every plant found."""
    (good,) = rehearse(["own.good"])
    assert good.planted == good.found == 4 and not good.broken
    (blind,) = rehearse(["own.blind"])
    assert blind.found == 0 and len(blind.missed) == 2 and "no result" in blind.broken[0]


@pytest.mark.parametrize(
    "value",
    [torch.zeros(3), torch.zeros(2, dtype=torch.bfloat16), torch.tensor([True]), torch.tensor([1 + 2j]), torch.zeros(()), torch.full((2,), torch.nan),
     1, 1.5, "text", True, [1, "a"], {"a": [torch.ones(2, dtype=torch.uint64)]}],
)  # fmt: skip
def test_every_plant_is_another_value(value):
    """A planted result differs from what it was made of, whatever its kind, and the original stays."""
    spoiled = list(spoil_each({"x": value}))
    assert spoiled and all(not equal(results["x"], value) for _, results in spoiled)


def _shown(report):
    text.write(report)
    return (report.folder / "report.txt").read_text()
