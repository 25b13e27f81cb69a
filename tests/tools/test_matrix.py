"""`make matrix`, but for the environments that it makes, which take 6 GB each: what is installed, counted and told."""

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture
def matrix(root):
    spec = importlib.util.spec_from_file_location("matrix", root / "tools" / "matrix.py")
    module = sys.modules["matrix"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["matrix"]


def test_words_stand_for_versions(matrix):
    """The oldest that pyproject.toml admits, the pinned one to the last package, the registry's newest, or a version."""
    assert matrix.requirements("oldest") == ("torch==2.11.*", False)
    assert matrix.requirements("pinned") == matrix.requirements("2.13.0") == ("torch==2.13.0", True)
    assert matrix.requirements("newest") == ("torch", False)
    assert matrix.requirements("2.12.1") == ("torch==2.12.1", False)


TESTS = """
import pytest
def test_good(): pass
def test_also_good(): pass
def test_bad(): assert WRONG
@pytest.mark.skip(reason="not here")
def test_not_here(): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
def test_counts_and_failures_are_those_of_pytest(matrix, tmp_path, right):
    """A real run of pytest: passed, failed, skipped, and the name of what failed; all green is no failure."""
    (tmp_path / "venv").symlink_to(sys.prefix)
    environment, found = matrix.Environment(tmp_path), matrix.Outcome("2.99.0")
    (tmp_path / "test_some.py").write_text(TESTS.replace("WRONG", str(right)))
    matrix._tests(environment, found, [str(tmp_path / "test_some.py")])
    assert found.tests == {"passed": 2 + right, "failed": 1 - right, "skipped": 1}
    assert found.broken == ([] if right else ["tests"])
    told = matrix.table([found])
    assert ("test_bad" in told) is not right and "| 2.99.0 |" in told


def test_a_version_that_cannot_be_had_is_a_failure(matrix, monkeypatch, capfd):
    """What pip refuses is told in the table, the others go on, and the exit status is 1."""
    made = []

    def install(self, asked):
        made.append(self.folder)
        matrix.subprocess.run(["false"], check=True)

    monkeypatch.setattr(matrix.Environment, "install", install)
    monkeypatch.setattr(sys, "argv", ["matrix", "0.0.1", "0.0.2"])
    assert matrix.main() == 1
    assert len(made) == 2 and not any(Path(folder).exists() for folder in made)
    assert "torch 0.0.2: could not run" in capfd.readouterr().out
