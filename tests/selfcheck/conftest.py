"""A Python in which samebits is not installed: its sources are found by PYTHONPATH, as `make gpu` uses them."""

import os
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def uninstalled(tmp_path_factory):
    """(command, environment): this Python, with every package of its environment but samebits."""
    packages = Path(torch.__file__).parents[1]
    folder = tmp_path_factory.mktemp("packages") / "site-packages"
    folder.mkdir()
    for entry in packages.iterdir():
        if not entry.name.startswith(("samebits", "_editable_impl_samebits")):
            (folder / entry.name).symlink_to(entry)
    command = [str(Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"), "-S"]
    return command, {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{folder}"}
