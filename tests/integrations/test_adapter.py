"""Programs of all libraries but Lightning that are killed, stopped and started again: the facts that hold for all."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from killed_programs import killed, whole

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
SUPPORT = {"PYTHONPATH": f"{HERE.parents[1] / 'src'}:{HERE.parent / 'support'}"}


@pytest.fixture(params=["ignite", "keras", "stable_baselines3", "transformers"])
def program(request):
    """The path of a program that trains with that library."""
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return HERE / f"{request.param}_program.py"


def test_without_the_adapter_a_kill_changes_the_end(tmp_path, program):
    """The control: by its own resume the library ends with other weights, or cannot start again after a kill in a save."""
    expected, steps = whole([program, "plain"], tmp_path / "whole", **SUPPORT)
    assert whole([program, "plain"], tmp_path / "again", **SUPPORT)[0] == expected
    try:
        found = killed([program, "plain"], tmp_path / "killed", steps, seed=2, **SUPPORT)
    except AssertionError as error:
        assert "no FINAL line" in str(error)  # noqa: PT017 (it names the half file that it cannot read)
        return
    assert found != expected


def test_workers_and_finished_runs(tmp_path, program):
    """Another number of workers changes nothing; a finished run trains nothing, and has its weights and log."""
    expected, steps = whole([program, "resumable"], tmp_path / "whole", **SUPPORT)
    assert whole([program, "resumable"], tmp_path / "none", **SUPPORT, WORKERS="0")[0] == expected
    assert whole([program, "resumable"], tmp_path / "whole", **SUPPORT) == (expected, steps)


def test_sigterm_commits_and_exits_with_75(tmp_path, program):
    """After SIGTERM the process exits with code 75, and the next one goes on without repeating a step."""
    expected, steps = whole([program, "resumable"], tmp_path / "whole", **SUPPORT)
    given = {"kills": 2, "seed": 3, "how": signal.SIGTERM, "code": 75}
    assert killed([program, "resumable"], tmp_path / "k", steps, **given, **SUPPORT) == expected
    assert (tmp_path / "k" / "progress").stat().st_size == steps


@pytest.mark.parametrize("name", ["keras", "lightning"])
def test_verify_proves_the_example(tmp_path, name):
    """The command in the example's first lines exits with 0, kills it in three ways, and misses no object's state."""
    pytest.importorskip(name)
    folder = HERE.parents[1] / "examples" / "integrations"
    command = [sys.executable, "-m", "samebits", "verify", "--checks", "kill", folder / f"train_{name}.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **SUPPORT}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("VERIFIED: ")
    assert "note: " not in done.stdout
