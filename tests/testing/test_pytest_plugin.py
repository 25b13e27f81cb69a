"""The pytest plugin: a marked test is a training that is run twice, and killed and resumed, in fresh processes."""

import subprocess
import sys
import tomllib
from xml.etree import ElementTree as ET

import pytest

PLUGIN = "samebits.testing._pytest_plugin"
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
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        PLUGIN,
        "--strict-markers",
        "--junitxml=out.xml",
        "-q",
        "test_it.py",
    ]
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


def test_an_installation_registers_the_plugin(root):
    """pytest finds the plugin by the entry point of the package."""
    with (root / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["entry-points"]["pytest11"] == {"samebits": PLUGIN}


@pytest.mark.slow
def test_a_right_training_passes_and_a_wrong_one_names_its_first_difference(tmp_path):
    """Verdicts: killed and resumed equal; a forgotten local variable, a missing seed and an absent `Run` are said in words."""
    text = TRAINING + """
@pytest.mark.samebits
@pytest.mark.parametrize("rate", [0.1, 0.2])
def test_right(run_dir, rate):
    train(run_dir, rate)

@pytest.mark.samebits
class TestClass:
    def test_right(self, run_dir):
        train(run_dir)

@pytest.mark.samebits
def test_forgets(run_dir):
    train(run_dir, forgets=True)

@pytest.mark.samebits(seed=3)
def test_unseeded(run_dir):
    train(run_dir, seed=None)

def without_run():
    samebits.set_random_seed(1)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(2)).sum().backward()
        optimizer.step()

@pytest.mark.samebits
def test_without_run(run_dir):
    without_run()

@pytest.mark.samebits
def test_again():
    without_run()

@pytest.mark.samebits(checks=["run-again", "kill-epoch-end", "kill-twice"], steps=8)
def test_more(run_dir):
    train(run_dir)

@pytest.mark.samebits
def test_raises(run_dir):
    assert SIZE == 9
"""  # fmt: skip
    failures, values, output = run_pytest(tmp_path, text)
    good = {name for name, text in failures.items() if not text}
    assert good == {"test_right[0.1]", "test_right[0.2]", "test_right", "test_again", "test_more"}, output
    assert values["test_right"][0].startswith("VERIFIED: the same bits in all 12 steps, run again and killed")
    assert values["test_again"][0].startswith("REPRODUCED")
    assert "killed and resumed in 2 ways" in values["test_more"][0]
    assert "local variable `average` differs. Keep what lives from one step" in failures["test_forgets"]
    assert "call samebits.set_random_seed(seed)" in failures["test_unseeded"].replace("Call", "call")
    assert "kill-mid-epoch (the script does not use samebits.Run)" in failures["test_without_run"]
    assert 'test_it.py", line' in failures["test_raises"] and "assert 8 == 9" in failures["test_raises"]
