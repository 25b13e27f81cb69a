"""Builds the wheel, with the machine code of all kernels for every kind of CPU: `make wheel`.

    python tools/wheel.py [--kernels REGEX] [--into dist]

Every kernel that a module declares is compiled for each kind of CPU in `llvm.TARGETS`, on any x86-64 machine, into
build/packs/KIND.zip, which hatch_build.py puts into the wheel. Of x86-64-v4-bf16 only those are kept whose code has its
instruction: for the others that kind reads the pack of x86-64-v4. A pack of the same sources and kernels is kept.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import pkgutil
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

from rich.progress import track

import samebits
from samebits._native import kernel_threads, llvm, machine_code

ROOT = Path(__file__).resolve().parent.parent
PACKS = ROOT / "build" / "packs"
_PAIRS = "avx512bf16"


def main() -> None:
    """Compiles the packs and builds the wheel; prints what it made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", default="", metavar="REGEX", help="only kernels with such a name")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="FOLDER")
    parser.add_argument("--kind", choices=llvm.TARGETS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.kind:
        return pack(asked.kind, asked.kernels)
    PACKS.mkdir(parents=True, exist_ok=True)
    for kind in llvm.TARGETS:
        command = [sys.executable, __file__, "--kind", kind, "--kernels", asked.kernels]
        subprocess.run(command, check=True, env=os.environ | {"SAMEBITS_CPU_NAME": kind})
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*wheel, "--wheel-dir", asked.into, ROOT], check=True)
    for made in [*PACKS.glob("*.zip"), *asked.into.glob("*.whl")]:
        print(f"{os.path.relpath(made)}: {made.stat().st_size / 1e6:.1f} MB")
    return None


def pack(kind: str, only: str) -> None:
    """Compiles the kernels of a kind of CPU, which this process plays."""
    names = sorted(name for name in _declared() if re.search(only, name))
    made = PACKS / f"{kind}.zip"
    label = machine_code.sources_digest().encode()
    if made.exists():
        with ZipFile(made) as before:
            if before.comment == label and set(before.namelist()) == set(names):
                print(f"{kind}: kept, it is of these sources")
                return
    beside = made.with_suffix(".new")
    with ZipFile(beside, "w", ZIP_DEFLATED) as target, multiprocessing.get_context("fork").Pool() as pool:
        codes = pool.imap_unordered(_compiled, ((name, kind.endswith("bf16")) for name in names))
        for name, code in track(codes, f"compiling for {kind}", len(names)):
            if code:
                target.writestr(name, machine_code.with_checksum(code))
        target.comment = label
    beside.replace(made)


@cache
def _declared() -> dict[str, Any]:
    """Returns the kernels of all modules, but of those for GPUs; other libraries' adapters have none."""
    for module in pkgutil.walk_packages(samebits.__path__, "samebits."):
        if not re.search(r"__main__|_triton|integrations", module.name):
            importlib.import_module(module.name)
    return kernel_threads.declared()


def _compiled(asked: tuple[str, bool]) -> tuple[str, bytes]:
    name, pairs_only = asked
    kernel = _declared()[name]
    return name, b"" if pairs_only and _PAIRS not in str(kernel.module()) else machine_code.compiled(kernel)


if __name__ == "__main__":
    main()
