"""The runner, the report and the judges of tests/gpu: real processes that crash, hang and fault, on the CPU."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import gpu_report
from agreement import agree, difference, equal, spoil_each
from timing import capture_graph, compare

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENVIRONMENT = {"gpu": "a test", "torch": "0", "cuda": "0", "sources": "0", "date": "2026-01-01"}
CODE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import run
sys.exit(run.run_parts([Path(sys.argv[1]) / "faults.py"], Path(sys.argv[2]), sys.argv[4:], float(sys.argv[3]), False))
"""


def command(folder, *arguments, seconds=200):
    gpu_report.begin(folder, ENVIRONMENT)
    return [sys.executable, "-c", CODE, str(HERE), str(folder), str(seconds), *arguments]


def cases_of(folder):
    return {name.partition("::test_")[2]: case for name, case in gpu_report.read(folder)["cases"].items()}


def ran(folder, *arguments, seconds=200):
    """(exit status, output, cases by name) of the runner with tests/gpu/faults.py."""
    run = command(folder, *arguments, seconds=seconds)
    done = subprocess.run(run, capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout, cases_of(folder)


@pytest.mark.slow
def test_a_case_that_passes_is_reported_and_not_run_again(tmp_path):
    """Exit status 0, figures and goals in the report; a report of other sources is kept, and begun anew."""
    code, output, cases = ran(tmp_path, "-k", "first")
    assert (
        code == 0
        and cases["first"]["state"] == "passed"
        and cases["first"]["goals"] == {"at least as fast": True}
    )
    assert "1 of 1 cases passed" in output
    assert ran(tmp_path, "-k", "first")[2] == cases
    gpu_report.begin(tmp_path, {**ENVIRONMENT, "sources": "1"})
    assert cases_of(tmp_path) == {} and (tmp_path / "report-2026-01-01-0.json").exists()


@pytest.mark.slow
def test_a_crash_a_fault_and_a_hang_cost_one_case_each(tmp_path):
    """What kills, spoils or blocks a process fails its own case; those behind it run, in another process."""
    code, output, cases = ran(tmp_path, "-k", "not slow")
    assert code == 1 and {name: case["state"] for name, case in cases.items()} == {
        "first": "passed", "unequal": "failed", "crash": "failed", "behind_the_crash": "passed", "fault": "failed",
        "behind_the_fault": "passed", "fault_of_a_launch": "failed", "behind_the_launch": "passed",
        "hang": "failed", "missing": "skipped",
    }  # fmt: skip
    behind = ("first", "behind_the_crash", "behind_the_fault", "behind_the_launch")
    assert len({cases[name]["figures"]["pid"] for name in behind}) == 4
    assert "-11" in cases["crash"]["wrong"][0] and "limit" in cases["hang"]["wrong"][0]
    assert (
        cases["unequal"]["wrong"] == ["a is 0, not 1"] and "no_such_package" in cases["missing"]["wrong"][0]
    )
    assert "FAILED faults.py::test_unequal: a is 0, not 1" in output


def test_a_selection_that_runs_no_case_fails(tmp_path):
    """Nothing has run, so nothing is shown: exit status 1."""
    assert ran(tmp_path, "-k", "no_such_case")[0] == 1


@pytest.mark.slow
def test_the_next_call_continues(tmp_path):
    """When the time of a file is over, or the runner is killed, the next call runs only the rest."""
    code, output, first = ran(tmp_path, "-k", "slow", seconds=9)
    assert code == 1 and len(first) < 4 and "the same command continues" in output
    process = subprocess.Popen(command(tmp_path, "-k", "slow"), stdout=subprocess.DEVNULL)
    while len(cases_of(tmp_path)) == len(first):
        time.sleep(0.1)
    process.kill()
    process.wait()
    code, _, cases = ran(tmp_path, "-k", "slow")
    assert code == 0 and len(cases) == 4 and all(cases[name] == first[name] for name in first)


def make_gpu(path=None, **variables):
    environment = {"HOME": "/", "PATH": f"{path}:/usr/bin:/bin", **variables}
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    began = time.monotonic()
    done = subprocess.run(
        ["make", "--no-print-directory", "gpu", f"PYTHON={base} -S"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    return done.returncode, lines, time.monotonic() - began


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="there is a GPU here")
def test_without_a_gpu_one_line_says_so(tmp_path):
    """`make gpu` exits 2 with one line of its own, before it imports anything from elsewhere."""
    code, (line,), seconds = make_gpu(tmp_path)
    assert code == 2 and line.startswith("make gpu: no NVIDIA GPU here.") and seconds < 10


@pytest.mark.skipif(
    (ROOT / ".venv").exists() and any(Path("/dev").glob("nvidia[0-9]*")), reason="a GPU is here"
)
@pytest.mark.parametrize(
    "sees, told", [(True, "with torch 9.9 lacks "), (False, "no Python here has a torch that sees")]
)
def test_a_python_that_cannot_run_the_tests_is_named(tmp_path, sees, told):
    """With a GPU, one line names the packages that the Python lacks, or says that its torch sees no GPU."""
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\necho "GPU 0: Made Up (UUID: GPU-0)"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(
        f"__version__ = '9.9'\nclass cuda:\n    is_available = staticmethod(lambda: {sees})\n"
    )
    code, (line,), _ = make_gpu(tmp_path, PYTHONPATH=str(tmp_path), PYTHONNOUSERSITE="1")
    assert code == 2 and line.startswith("make gpu: ") and told in line


# --- the judges ---


def test_a_rehearsal_finds_a_judge_that_sees_nothing(small):
    """A judge that lets a planted result pass, and results that cannot be wrong, fail; a good judge passes."""
    small.check(agree, lambda target: {"x": {"a": torch.ones(3), "b": torch.ones(3)}})
    with pytest.raises(AssertionError, match="2 of 2 wrong results are not seen"):
        small.check(lambda results: [], lambda target: {"a": torch.ones(3), "b": 1})
    with pytest.raises(AssertionError, match="no result that could be wrong"):
        small.check(agree, lambda target: {})


VALUES = (
    torch.zeros(3), torch.zeros(2, dtype=torch.bfloat16), torch.tensor([True]), torch.tensor([1 + 2j]), torch.zeros(()),
    torch.full((2,), torch.nan), 1, 1.5, "text", True, [1, "a"], {"a": [torch.ones(2, dtype=torch.uint64)]},
)  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_every_planted_result_is_another_value(value):
    """A planted result differs from its original, of every kind, and the original stays."""
    spoiled = list(spoil_each({"x": value}))
    assert spoiled and all(not equal(value, results["x"]) for _, results in spoiled)


def test_groups_that_agree_pass():
    """Values of one group are compared with each other, groups are not; a group of one shows nothing."""
    good = {"a": {"x": torch.ones(2), "y": torch.ones(2)}, "b": {"x": [1], "y": [1], "z": [1]}}
    assert not list(agree(good))
    assert list(agree({"a": {"the CPU": 1}})) == ["a: there is nothing to compare with the CPU"]


ZEROS, OTHERS = torch.tensor([1.0, 2.0, 0.0]), torch.tensor([1.0, 3.0, -0.0])
DIFFERENCES = (
    (ZEROS, OTHERS, "2 of 3 elements, first [1]: 2.0, not 3.0"),
    (torch.ones(2), torch.ones(3), "torch.float32 (2,), not torch.float32 (3,)"),
    (torch.ones(2), torch.ones(2).double(), "torch.float32 (2,), not torch.float64 (2,)"),
    ([1, torch.zeros(1)], [1, torch.ones(1)], "[1] 1 of 1 elements, first [0]: 0.0, not 1.0"),
    ({"a": "one"}, {"a": "two"}, "[a] 'one', not 'two'"),
    ([1], [1, 2], "[1] 'nothing', not 2"),
    (torch.tensor([3]).as_strided((1,), (0,)), torch.tensor([4]), "1 of 1 elements, first [0]: 3, not 4"),
)


@pytest.mark.parametrize("value, expected, message", DIFFERENCES)
def test_a_difference_has_its_place(value, expected, message):
    """The place where two values differ first, and what stands there; one element of any stride is compared, too."""
    assert difference(value, expected) == message and equal(value, value)
    (line,) = agree({"a": {"the CPU": expected, "the GPU": value}})
    assert line == f"a: the GPU is not the CPU: {message}"


def test_times_are_ratios(small):
    """The ratio is theirs over ours; what is captured is called that often by one replay, on a CPU in a loop."""
    ours, theirs, faster = compare((lambda: time.sleep(0.001), lambda: time.sleep(0.01)), small)
    assert 1e6 <= ours < theirs and faster > 2
    calls = []
    capture_graph(lambda: calls.append(1), 7, "cpu")()
    assert len(calls) == 7
