"""`make verdicts`: what the readers of programs say, one line a verdict, is what it was."""

import importlib.util
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def verdicts(root):
    spec = importlib.util.spec_from_file_location("verdicts", root / "tools" / "verdicts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the text is of Python 3.11: later ones inline comprehensions"
)
def test_the_readers_say_what_they_said_of_the_broken_programs(verdicts, root):
    """Of each program the number of verdicts and their digest are those of tests/golden/verdicts.txt."""
    # a process of its own: other tests call the functions of purity_corpus, which keep things
    command = [sys.executable, root / "tools" / "verdicts.py", "--quick"]
    found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    assert found == verdicts.GOLDEN.read_text(), "make verdicts BASE=HEAD names each that moved"


@pytest.mark.parametrize(("line", "moved"), [
    ("        print(total)\n", ["f:1.total | only output | True"]),
    ("        model.scale = total\n", ["f:1.total | only output | False"]),
])  # fmt: skip
def test_another_answer_is_another_line(verdicts, tmp_path, line, moved):
    """The control: a program whose value trains has another verdict than one whose value is printed."""
    path = tmp_path / "program.py"
    path.write_text(f"def f(model, rows):\n    total = 0\n    for row in rows:\n        total += 1\n{line}")
    lines = {str(one) for one in verdicts.read_program("p", path)}
    assert {f"p | {one} | " for one in moved} <= lines
