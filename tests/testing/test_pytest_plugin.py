"""The pytest plugin: a marked test is a training that is run twice, and killed and resumed, in fresh processes."""

import os
import signal
import subprocess
import sys
import time
import tomllib
from xml.etree import ElementTree as ET

import pytest

PLUGIN = "samebits.testing.pytest_plugin"
PYTEST = (sys.executable, "-m", "pytest", "-p", PLUGIN)
TRAINING = """
import pytest, torch
import samebits

SIZE = 8

def train(run_dir, rate=0.1, forgets=False, seed=1):
    if seed is not None:
        samebits.set_random_seed(seed)
    inputs = torch.arange(64.0).reshape(8, SIZE) / 64
    model = torch.nn.Sequential(torch.nn.Linear(SIZE, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loader = samebits.data.DataLoader(inputs, batch_size=2, shuffle=True)
    average = torch.zeros(())
    with samebits.Run(run_dir, model=model, optimizer=optimizer, check_complete=False) as run:
        for step, x in run.steps(loader, epochs=3):
            loss = model(x).square().mean()
            if forgets:
                average = 0.9 * average + loss.detach()
                loss = loss * average
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def run_pytest(folder, text, *options):
    """Runs pytest on a file with the text; returns each test's failure (empty if it passed), its verdict, the output."""
    (folder / "test_it.py").write_text(text)
    command = [*PYTEST, "--strict-markers", "--junitxml=out.xml", "-q", "test_it.py"]
    done = subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, text=True, timeout=800, check=False
    )
    cases = list(ET.parse(folder / "out.xml").iter("testcase")) if (folder / "out.xml").exists() else []
    failures = {one.get("name"): getattr(one.find("failure"), "text", "") for one in cases}
    values = {one.get("name"): [value.get("value") for value in one.iter("property")] for one in cases}
    return failures, values, done.stdout


def test_a_wrong_use_of_the_marker_is_named_with_the_line_to_type(tmp_path):
    """Unknown arguments, checks and values, a coroutine, a fixture that no process can be given: each fails by its reason."""
    marks = {
        "argument": (
            "(foo=3)",
            "run_dir",
            "samebits{'foo': 3}: type @pytest.mark.samebits(checks=",
        ),
        "check": ('(checks="lunch")', "run_dir", "'lunch': choose from run-again, busy"),
        "steps": ("(steps=0)", "run_dir", "samebits(steps=0): a number of steps, from 1"),
        "timeout": ("(timeout=-1)", "run_dir", "samebits(timeout=-1): a number of seconds, from 1"),
        "seed": ("(seed='a')", "run_dir", "samebits(seed='a'): must be an int of at least 0"),
        "fixture": (
            "",
            "run_dir, tmp_path, capsys",
            "the fixture 'capsys' cannot be passed to the fresh process",
        ),
    }
    tests = [
        f"@pytest.mark.samebits{mark}\ndef test_{name}({arguments}): ...\n"
        for name, (mark, arguments, _) in marks.items()
    ]
    tests += ["@pytest.mark.samebits\nasync def test_coroutine(run_dir): ...\n"]
    failures, _, output = run_pytest(tmp_path, "import pytest\n\n" + "\n".join(tests))
    assert len(failures) == len(marks) + 1, output
    for name, (_, _, text) in marks.items():
        assert text in failures[f"test_{name}"]
    assert "write `def` instead of `async def`" in failures["test_coroutine"]


def test_other_tests_are_as_without_the_plugin(tmp_path):
    """An unmarked test gets a run directory of its own, and the plugin imports neither torch nor NumPy."""
    text = "import sys\ndef test_it(run_dir, tmp_path):\n    assert run_dir == tmp_path / 'run'\n    assert not {'torch', 'numpy'} & {*sys.modules}\n"
    failures, values, output = run_pytest(tmp_path, text)
    assert (failures, values) == ({"test_it": ""}, {"test_it": []}), output


def test_an_installation_registers_no_plugin(root):
    """An entry point would make pytest rewrite the code of all of samebits, in each project that has it installed."""
    with (root / "pyproject.toml").open("rb") as file:
        assert "entry-points" not in tomllib.load(file)["project"]


WITHOUT_RUN = """
def plain():
    samebits.set_random_seed(1)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
"""
IN_A_CLASS = """
@pytest.mark.samebits
class TestTraining:
    @pytest.mark.parametrize("rate", [0.1])
    def test_it(self, run_dir, rate):
        train(run_dir, rate)
"""


def marked(mark, arguments, call):
    return f"@pytest.mark.samebits{mark}\ndef test_it({arguments}): {call}\n"


RIGHT = {
    "in a class": (
        IN_A_CLASS,
        "VERIFIED: the same bits in all 12 steps, run again and killed and resumed in 1 way.",
    ),
    "no Run": (
        WITHOUT_RUN + marked("", "", "plain()"),
        "REPRODUCED: the same bits in all 3 steps, run again.",
    ),
    "more": (
        marked('(checks=["kill-epoch-end", "kill-twice"], steps=8, seed=2)', "run_dir", "train(run_dir)"),
        "VERIFIED: the same bits in all 8 steps of a short run (--steps 8), ",
    ),
}
WRONG = {
    "forgets": (
        ("", "run_dir", "train(run_dir, forgets=True)"),
        "local variable `average` differs. Keep what lives",
    ),
    "no seed": (("", "run_dir", "train(run_dir, seed=None)"), "all samebits.set_random_seed(seed)"),
    "no Run": (("", "run_dir", "plain()"), "kill-mid-epoch (the script does not use samebits.Run)"),
    "raises": (("", "run_dir", "1 / 0"), "ZeroDivisionError: division by zero"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", RIGHT)
def test_a_right_training_passes(case, tmp_path):
    """The verdict is a property of the test, and says what is proven."""
    text, verdict = RIGHT[case]
    failures, values, output = run_pytest(tmp_path, TRAINING + text)
    ((name, failure),) = failures.items()
    assert not failure, output
    assert values[name][0].startswith(verdict)


@pytest.mark.slow
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_training_fails_with_the_first_difference(case, tmp_path):
    """What is forgotten, not seeded, not proven or raised is said, and its line where there is one."""
    test, reason = WRONG[case]
    failures, _, output = run_pytest(tmp_path, TRAINING + WITHOUT_RUN + marked(*test))
    assert reason in failures["test_it"], output
    assert case != "raises" or 'test_it.py", line' in failures["test_it"]


@pytest.mark.slow
def test_the_fresh_process_finds_the_modules_beside_a_test(tmp_path):
    """A training that the test imports from a file in its folder is imported in the process, too."""
    (tmp_path / "helper_of_it.py").write_text(TRAINING + WITHOUT_RUN)
    text = "import pytest\nfrom helper_of_it import plain\n" + marked("", "", "plain()")
    failures, _, output = run_pytest(tmp_path, text)
    assert failures == {"test_it": ""}, output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_pytest_and_not_one_test_alone(number, tmp_path):
    """While a training runs, Ctrl-C ends the session with pytest's code 2; no other test begins, no process is left."""
    text = "import pathlib, os, time, pytest\n" + marked(
        "", "", "pathlib.Path('pid').write_text(str(os.getpid())), time.sleep(600)"
    )
    (tmp_path / "test_it.py").write_text(f"{text}\ndef test_next(): open('next', 'w')\n")
    command = [*PYTEST, "-q", "test_it.py"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    began = time.monotonic()
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert process.poll() is None and time.monotonic() < began + 300
        time.sleep(0.1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    assert "KeyboardInterrupt" in output and not (tmp_path / "next").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
