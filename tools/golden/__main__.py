"""`make golden BASE=<commit>`: does this tree compute the bits that another commit computes? Fact by fact, on this machine.

python tools/golden BASE          compare a git worktree of BASE with the working tree
python tools/golden --write       write the text of this machine to tests/golden/ (never done by a test)
python tools/golden --held        compare the working tree with tests/golden/anywhere.txt, which holds on every CPU
python tools/golden --held --emulator "qemu-x86_64-static -cpu Haswell"     ... on a CPU that a program plays, with the
                                              kernels that this CPU compiled for AVX2 just before (each section runs twice)
python tools/golden               print the text

A fact is one line, `section name digest`. Each section is computed by this same script in a process of its own, in each of
the two trees with that tree's samebits, and uses documented public names only. Exit status: 0 all facts are equal, 1 some
differ or a section failed (each is named), 2 BASE is no commit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from samebits.arithmetic import BITS
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TEXTS = ROOT / "tests" / "golden"
MACHINES = (
    *("machine_reductions", "machine_pointwise", "machine_products", "machine_lengths", "machine_training"),
    *("machine_convolutions", "machine_normalizations", "machine_attention", "machine_recurrent"),
    *("machine_indexing", "machine_losses", "machine_others", "machine_linalg", "machine_fourier"),
)
"""Sections that `across="machines"` promises to be the same on every CPU."""
ANYWHERE = ("draws", "seeds", "pipelines", "loaders", *MACHINES)
"""Sections that are promised to be the same on every CPU."""
SECTIONS = (
    # long ones first
    *("language_model", "digits", "trainer", "products", "pointwise", "convolutions", "reductions"),
    *(
        "normalizations",
        "attention",
        "recurrent",
        "indexing",
        "fourier",
        "linalg",
        "losses",
        "covered",
        "table",
    ),
    *("commits", "record", "replicas", "rounding", "layers", "steps", *ANYWHERE),
)
EQUAL, DIFFERENT, NO_BASE = 0, 1, 2
LIMIT_S = 900
EMULATED = 20
"""Times that for a CPU that a program plays."""


class Played(NamedTuple):
    """Another CPU than this one: environment variables, and the words of a command that come before Python's."""

    variables: Mapping[str, str]
    emulator: Sequence[str] = ()


HERE_AS_IT_IS = Played({})


def section_text(name: str, tree: Path, folder: Path, played: Played) -> list[str]:
    """The facts of a section in a tree; a line that begins with "!" where it failed or has none."""
    own = folder / name
    own.mkdir(parents=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree / "src"),
        "PYTHONHASHSEED": "0",
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_NUM_THREADS": "2",  # records and manifests have the number
        **played.variables,
    }
    command = [*played.emulator, sys.executable, str(HERE / "section.py"), name, str(tree)]
    began, limit = time.monotonic(), LIMIT_S * (EMULATED if played.emulator else 1)
    try:
        done = subprocess.run(
            command, cwd=own, env=environment, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return [f"!{name} ran past {limit} s"]
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        return [*lines, f"!{name} failed with exit status {done.returncode}: {said}"]
    if played.emulator:
        print(f"golden: {name}: {len(lines)} facts, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return lines


def tree_text(tree: Path, sections: Sequence[str], played: Played = HERE_AS_IT_IS) -> list[str]:
    """The facts of a tree, section by section in the order of the alphabet; two processes at a time."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as pool:
        texts = pool.map(lambda name: section_text(name, tree, Path(folder), played), sections)
        return [line for _, lines in sorted(zip(sections, texts, strict=True)) for line in lines]


def compare(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """The names of facts that moved, came or went, and the sections that failed on either side."""
    old, new = (dict(line.rsplit(" ", 1) for line in text if line[0] != "!") for text in (before, after))
    told = [
        f"{side}: {line[1:]}"
        for side, text in (("before", before), ("now", after))
        for line in text
        if line[0] == "!"
    ]
    for name in sorted({*old, *new}):
        if name not in new:
            told.append(f"{name} is gone")
        elif name not in old:
            told.append(f"{name} is new")
        elif old[name] != new[name]:
            told.append(f"{name} was {old[name]}, is {new[name]}")
    return told


@contextlib.contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A git worktree of a commit in a temporary folder, which is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "base"
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _cpu(key: str) -> str:
    found = re.search(rf"^{key}\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def cpu_name() -> str:
    """The model name of this CPU, as a file is called."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", _cpu("model name")).strip("-")


def first_line() -> str:
    """What a CPU's text holds for: torch's version, and the CPU's model, since some have no name of their own."""
    return f"# torch {version('torch')}, CPU family {_cpu('cpu family')} model {_cpu('model')} stepping {_cpu('stepping')}"


def version_line() -> str:
    """The first line of the text that holds anywhere: the version of the bits of which it is."""
    return f"# samebits.arithmetic.BITS = {BITS}"


def write(lines: Sequence[str]) -> list[Path]:
    """Writes what holds anywhere, and what holds on this CPU with this torch.

    A fact of `MACHINES` that moved is written only with a new version of the bits.
    """
    before = dict(line.rsplit(" ", 1) for line in held(MACHINES))
    moved = [
        line
        for line in lines
        if before.get(line.rsplit(" ", 1)[0], line.rsplit(" ", 1)[-1]) != line.rsplit(" ", 1)[-1]
    ]
    if moved and version_line() == (TEXTS / "anywhere.txt").read_text().splitlines()[0]:
        sys.exit(
            f"golden: {len(moved)} facts moved, the first is {moved[0]}: raise samebits.arithmetic.BITS first"
        )
    sure = [line for line in lines if line.split(" ", 1)[0] in ANYWHERE]
    rest = [line for line in lines if line not in sure]
    TEXTS.mkdir(exist_ok=True)
    files = {
        TEXTS / "anywhere.txt": [version_line(), *sure],
        TEXTS / f"{cpu_name()}.txt": [first_line(), *rest],
    }
    for file, text in files.items():
        file.write_text("".join(f"{line}\n" for line in text))
    return list(files)


def held(sections: Sequence[str]) -> list[str]:
    """The lines of the text that holds on every CPU, of these sections."""
    lines = (TEXTS / "anywhere.txt").read_text().splitlines()
    return [line for line in lines if line.split(" ", 1)[0] in sections]


def differences_from_held(sections: Sequence[str], emulator: Sequence[str]) -> list[str]:
    """What differs from the text that holds on every CPU; an emulator gets the kernels that this CPU compiles for AVX2."""
    plays = [Played(AVX2_ENVIRONMENT), Played(AVX2_ENVIRONMENT, emulator)] if emulator else [HERE_AS_IT_IS]
    return [line for played in plays for line in compare(held(sections), tree_text(ROOT, sections, played))]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", nargs="?", help="a commit")
    parser.add_argument("--write", action="store_true", help="write tests/golden/*.txt")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="SECTION", help=" ".join(SECTIONS)
    )
    parser.add_argument("--held", action="store_true", help="compare with tests/golden/anywhere.txt")
    parser.add_argument(
        "--emulator", default="", metavar="COMMAND", help="with --held: what plays another CPU"
    )
    asked = parser.parse_args()
    if asked.held:
        sections = ANYWHERE if asked.only is SECTIONS else asked.only
        told = differences_from_held(sections, shlex.split(asked.emulator))
        print(
            "\n".join(told) or f"golden: {len(held(sections))} facts are those of tests/golden/anywhere.txt"
        )
        return DIFFERENT if told else EQUAL
    if asked.write and asked.only is not SECTIONS:
        parser.error("--write writes whole texts: leave --only away")
    told: list[str] = []
    if asked.base is not None:
        try:
            commit = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{asked.base}^{{commit}}")
        except subprocess.CalledProcessError:
            print(f"golden: BASE={asked.base} is no commit of this repository", file=sys.stderr)
            return NO_BASE
        with worktree(commit) as tree:
            before = tree_text(tree, asked.only)
    lines = tree_text(ROOT, asked.only)
    failed = [line[1:] for line in lines if line[0] == "!"]
    if asked.base is not None:
        told = compare(before, lines)
        print("\n".join(told) or f"golden: {len(lines)} facts are equal to those of {commit[:9]}")
    elif not asked.write or failed:
        print("\n".join(lines))
    if asked.write and not failed:
        print("\n".join(f"wrote {file.relative_to(ROOT)}" for file in write(lines)))
    return DIFFERENT if told or failed else EQUAL


if __name__ == "__main__":
    sys.exit(main())
