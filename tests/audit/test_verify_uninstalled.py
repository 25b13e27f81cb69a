"""A Python in which samebits is not installed: its sources are found by PYTHONPATH, as `make gpu` uses them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.slow
def test_without_samebits_installed_a_script_is_verified(tmp_path, root):
    """From sources that are installed nowhere `python -m samebits` verifies the digits example, in all its processes."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    for entry in Path(torch.__file__).parents[1].iterdir():
        if not entry.name.startswith(("samebits", "_editable_impl_samebits")):
            (folder / entry.name).symlink_to(entry)
    python = [str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"), "-S"]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{folder}"}

    def run(*words):
        return subprocess.run(
            [*python, *words], cwd=root / "examples", env=environment, capture_output=True, text=True
        )

    version = run("-c", "import importlib.metadata as m; m.version('samebits')")
    assert "PackageNotFoundError" in version.stderr
    options = ["--steps", "8", "--checks", "kill-mid-epoch", "--json", tmp_path / "v"]
    done = run("-m", "samebits", "verify", *options, "digits.py")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "v").read_text())
    assert found["verdict"].startswith("VERIFIED") and found["environment"]["packages"]["samebits"]
