"""`make gpu` from a clone: which Python it takes, and what it says where it can take none. No network, nothing installed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASE = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
"""A Python without packages."""
NO_NETWORK = {f"{name}_proxy": "http://127.0.0.1:9" for name in ("http", "https", "all")} | {
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull,
}  # fmt: skip


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone, with what is not committed yet."""
    folder = tmp_path_factory.mktemp("clone") / "samebits"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(folder)], check=True)
    for name in ("Makefile", "tools/gpu", "constraints.txt"):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    (folder / "tools/gpu").chmod(0o755)
    return folder


@pytest.fixture
def path(tmp_path):
    """A folder in front of the path, with a GPU that a program of that name tells of."""
    programs = tmp_path / "bin"
    programs.mkdir()
    _program(programs / "nvidia-smi", 'echo "GPU 0: Made Up (UUID: GPU-0)"')
    return programs


def _program(file, text):
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def _plain_path():
    """Where programs of the system are; no Python of a virtual environment."""
    return "/usr/local/bin:/usr/bin:/bin"


def called(clone, *command, path=None, **variables):
    began = time.monotonic()
    environment = {
        "HOME": os.environ.get("HOME", "/"), **NO_NETWORK, **variables,
        "PATH": _plain_path() if path is None else f"{path}:{_plain_path()}",
    }  # fmt: skip
    found = subprocess.run(
        command, cwd=clone, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    return found, time.monotonic() - began


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="there is a GPU here")
def test_without_a_gpu_a_bare_clone_says_so_within_seconds(clone):
    """From a clone without network, .venv and GPU `make gpu` exits 2 within seconds, with one line of its own."""
    found, seconds = called(clone, "make", "gpu")
    assert found.returncode == 2 and seconds < 10
    assert [line[:27] for line in found.stderr.splitlines() if not line.startswith("make: ***")] == [
        "make gpu: no NVIDIA GPU her"
    ]
    assert not (clone / ".venv").exists() and not (clone / ".venv-gpu").exists()
    found, _ = called(clone, "tools/gpu", "--part", "training")
    assert found.returncode == 2 and len(found.stderr.splitlines()) == 1


def _python_with(folder, sees, *packages):
    """A Python that has a torch which sees a GPU or not, and such packages; all of them empty."""
    site = folder / "site"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "__init__.py").write_text(
        f"__version__ = '9.9+cu999'\nclass cuda:\n    is_available = staticmethod(lambda: {sees})\n"
    )
    for name in packages:
        (site / f"{name}.py").write_text("")
    return f'export PYTHONPATH="{site}:$PYTHONPATH"; exec {BASE} -S "$@"'


def test_a_python_that_lacks_packages_is_told_which(clone, path, tmp_path):
    """Where the Python whose torch sees the GPU lacks packages, one line names them; nothing is made."""
    _program(path / "python3", _python_with(tmp_path, True, "numpy", "rich", "typer", "numba"))
    found, _ = called(clone, "make", "gpu", path=path)
    line = next(line for line in found.stderr.splitlines() if line.startswith("make gpu"))
    assert found.returncode == 2 and "python3 with torch 9.9+cu999 lacks" in line
    assert "cloudpickle, safetensors, xxhash" in line and "numpy" not in line
    assert not (clone / ".venv-gpu").exists()


def test_the_python_whose_torch_sees_the_gpu_is_taken(clone, path, tmp_path):
    """A Python whose torch sees no GPU is passed over for one whose does, with this clone's samebits and the arguments."""
    every = ("cloudpickle", "numba", "numpy", "rich", "safetensors", "typer", "xxhash")
    _program(path / "python3", _python_with(tmp_path / "blind", False, *every))
    seeing = _python_with(tmp_path / "seeing", True, *every)
    told = 'case "$1" in -c) ;; *) echo "taken: $PYTHONPATH: $*"; exit 0;; esac'
    _program(path / "python", f"{told}\n{seeing}")
    found, _ = called(clone, "make", "gpu", "ARGS=--part training", path=path)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"taken: {clone}/src: -m samebits selfcheck --device cuda --part training")
    found, _ = called(clone, "make", "gpu", f"PYTHON={path}/python3", path=path)
    assert found.stdout.startswith("taken:")


@pytest.mark.slow
def test_without_network_an_environment_is_not_half_made(clone, path):
    """With a GPU, and no Python that sees it, an environment is made; where that fails, 2, and nothing is left."""
    _program(path / "python3", f'exec {BASE} -S "$@"')
    _program(path / "python", "exit 1")
    found, _ = called(clone, "make", "gpu", path=path)
    assert found.returncode == 2 and "could not make it" in found.stderr
    assert not (clone / ".venv-gpu").exists()
