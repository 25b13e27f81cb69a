"""The wheel has the machine code of kernels, which its user does not compile."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from samebits._native import llvm

KERNELS = r"philox\.fold__|softmax_rows_float32|product_(float32|bfloat16)"
USED = """
import torch
from samebits._native import lazy_kernel
from samebits.arithmetic.product import product
from samebits.arithmetic.softmax.tensors import softmax
from samebits.random._cpu import philox
x = torch.arange(1024.).view(32, 32).bfloat16()
print(philox.fold(1, 2, 3), softmax(x.float(), 1, torch.float32, log=False).sum().item(), product(x, x).sum().item())
print(len(lazy_kernel.compiled_here))
"""


@pytest.fixture(scope="module")
def wheel(root, tmp_path_factory):
    """A wheel with the code of a few kernels."""
    project = tmp_path_factory.mktemp("project")
    for name in ("README.md", "LICENSE", "hatch_build.py", "pyproject.toml"):
        shutil.copy(root / name, project)
    for name in ("src", "tools"):
        shutil.copytree(root / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        [sys.executable, project / "tools" / "wheel.py", "--kernels", KERNELS],
        env=os.environ | {"PYTHONPATH": str(project / "src")}, check=True, capture_output=True, cwd=project,
    )  # fmt: skip
    (made,) = (project / "dist").glob("*.whl")
    return made


@pytest.fixture
def installed(wheel, tmp_path):
    """A folder with what is in the wheel."""
    with ZipFile(wheel) as content:
        content.extractall(tmp_path / "installed")
    return tmp_path / "installed"


def ran(folder, **variables):
    """What the kernels return, and how many were compiled, in a process without a cache that has this folder."""
    found = subprocess.run(
        [sys.executable, "-c", USED],
        env=os.environ | {"PYTHONPATH": str(folder), "SAMEBITS_CACHE_DIR": os.devnull} | variables,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    *values, compiled = found.stdout.split("\n")[:-1]
    return values, int(compiled)


def packs(folder):
    return sorted((folder / "samebits" / "_native" / "packs").iterdir())


@pytest.mark.slow
def test_a_user_of_the_wheel_compiles_nothing(root, wheel, installed):
    """With the wheel's code no kernel is compiled, on each kind of CPU; without it three are, and give the same results."""
    assert wheel.name.endswith("_x86_64.whl")
    assert {pack.stem for pack in packs(installed)} == set(llvm.TARGETS)
    values, compiled = ran(installed)
    assert compiled == 0
    assert ran(installed, SAMEBITS_CPU_NAME="x86-64-v3") == (values, 0)
    assert ran(root / "src") == (values, 3)


@pytest.mark.slow
def test_a_pack_that_is_damaged_or_of_other_sources_is_not_used(installed):
    """A flipped byte in a kernel's code, and a changed source, each lead to compiling, and to no other result."""
    values, _ = ran(installed)
    pack = next(pack for pack in packs(installed) if pack.stem == "x86-64-v3")
    with ZipFile(pack) as content:
        members = {name: content.read(name) for name in content.namelist()}
        label = content.comment
    fold = next(name for name in members if ".fold__" in name)
    members[fold] = members[fold][:-1] + bytes([members[fold][-1] ^ 1])
    with ZipFile(pack, "w") as content:
        for name, stored in members.items():
            content.writestr(name, stored)
        content.comment = label
    assert ran(installed, SAMEBITS_CPU_NAME="x86-64-v3") == (values, 1)
    pack.write_bytes(pack.read_bytes()[:1000])
    assert ran(installed, SAMEBITS_CPU_NAME="x86-64-v3") == (values, 3)
    cipher = installed / "samebits" / "random" / "_cpu" / "philox.py"
    cipher.write_text(cipher.read_text() + "# another source\n")
    assert ran(installed) == (values, 3)


def test_every_function_that_makes_kernels_declares_them(root):
    """A cached function that returns a kernel has the decorator by which `make wheel` finds it."""
    found = [
        (path, line)
        for path in Path(root, "src").rglob("*.py")
        for before, line in zip(*(path.read_text().splitlines()[i:] for i in (0, 1)), strict=False)
        if before.startswith(("@cache", "@lru_cache")) and line.endswith(("-> OnTeam:", "-> ElementwiseFunction:"))
    ]  # fmt: skip
    assert found == []
