"""`make matrix [TORCH="2.11.0 newest"]`: the quick tests, `make verify`, the goldens of any CPU and the op review with several versions of torch.

Each version gets a virtual environment in a temporary folder (a CUDA build runs on a CPU, and takes 6 GB), which is
removed before the next. `oldest` and `pinned` are those of pyproject.toml and constraints.txt, `newest` is the
registry's. Ends with a table in Markdown, for docs/reference/versions.md. Exit status: 0 all passed, 1 not, 2 it could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    *(
        f"tests/{name}"
        for name in ("determinism", "random", "nn", "data", "inspect", "objects", "program", "callbacks")
    ),
    "tests/tools/test_op_table.py",
)
ROOM_GB = 8
PASSED, FAILED, COULD_NOT_RUN = 0, 1, 2


@dataclass
class Outcome:
    """What one version showed; empty where a part could not run."""

    asked: str
    torch: str = ""
    triton: str = ""
    tests: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    verify: str = ""
    digest: str = ""
    goldens: str = ""
    review: str = ""
    not_reviewed: str = ""
    minutes: float = 0.0
    broken: list[str] = field(default_factory=list)
    """Parts that failed, or could not run."""


def requirements(asked: str) -> tuple[str, bool]:
    """What pip installs for a word or a version, and whether it is the pinned environment, to the last package."""
    pinned = _find(r"^torch==(\S+)", "constraints.txt")
    if asked == "oldest":
        lowest = _find(r'"torch>=([\d.]+)"', "pyproject.toml")
        return f"torch=={lowest}.*", False
    if asked == "newest":
        return "torch", False
    version = pinned if asked == "pinned" else asked
    return f"torch=={version}", version == pinned


def _find(pattern: str, file: str) -> str:
    found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None, f"{file} has no {pattern}"
    return found[1]


class Environment:
    """A virtual environment in `folder`, with samebits as a user has it, and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._bin = folder, folder / "venv" / "bin"
        kept = {
            name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}
        }
        self._variables = {**kept, "PATH": f"{self._bin}:{kept['PATH']}", "OMP_WAIT_POLICY": "PASSIVE"}

    def install(self, asked: str) -> None:
        """Torch and triton come in the versions that belong together; the rest as constraints.txt has it."""
        torch, whole = requirements(asked)
        lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(keepends=True)
        free = ("#",) if whole else ("#", "torch==", "triton==")
        constraints = self.folder / "constraints.txt"
        constraints.write_text("".join(line for line in lines if not line.startswith(free)), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], check=True)
        pip = ("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        self.run(*pip, "--constraint", str(constraints), torch, f"{ROOT}[examples,test]", check=True)

    def run(self, *command: str, check: bool = False) -> int:
        """Runs it from the repository, its output shown."""
        program = str(self._bin / command[0])
        return subprocess.run([program, *command[1:]], cwd=ROOT, env=self._variables, check=check).returncode

    def asked(self, source: str) -> str:
        """What a Python program prints."""
        command = [str(self._bin / "python"), "-W", "ignore", "-c", source]
        return subprocess.run(
            command, cwd=self.folder, env=self._variables, check=True, capture_output=True, text=True
        ).stdout


def examine(asked: str, tests: list[str]) -> Outcome:
    """Everything with one version; its environment is gone afterwards."""
    found, begin = Outcome(asked), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="samebits-matrix-") as folder:
        environment = Environment(Path(folder))
        _say(f"{asked}: making an environment ({requirements(asked)[0]})")
        try:
            environment.install(asked)
            versions = "from importlib.metadata import version as v; print(v('torch'), v('triton'))"
            found.torch, found.triton = environment.asked(versions).split()
            for part in (_tests, _verify, _goldens, _review):
                _say(f"torch {found.torch}: {part.__name__.strip('_')}, {_minutes(begin):.0f} minutes so far")
                part(environment, found, tests)
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            found.broken.append(f"could not run: {error}")
    found.minutes = _minutes(begin)
    return found


def _tests(environment: Environment, found: Outcome, tests: list[str]) -> None:
    report = environment.folder / "junit.xml"
    environment.run(
        *("pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-m", "not chaos and not soak"),
        *(f"--junitxml={report}", *tests),
    )
    suite = ET.parse(report).getroot()[0]  # noqa: S314  (written by our own pytest)
    count = {name: int(suite.attrib[name]) for name in ("tests", "failures", "errors", "skipped")}
    failed = count["failures"] + count["errors"]
    passed = count["tests"] - failed - count["skipped"]
    found.tests = {"passed": passed, "failed": failed, "skipped": count["skipped"]}
    for case in suite.iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            found.failures.append(f"{case.get('classname')}::{case.get('name')}")
    if failed or not passed:
        found.broken.append("tests")


def _verify(environment: Environment, found: Outcome, _: list[str]) -> None:
    report = environment.folder / "verify.json"
    code = environment.run("samebits", "verify", "--json", str(report), "examples/digits.py")
    told = json.loads(report.read_text(encoding="utf-8"))
    found.verify, found.digest = told["verdict"], told["final"] or ""
    if code:
        found.broken.append("verify")


def _goldens(environment: Environment, found: Outcome, _: list[str]) -> None:
    code = environment.run("python", "tools/golden", "--held")
    found.goldens = "differ" if code else "equal"
    if code:
        found.broken.append("goldens")


def _review(environment: Environment, found: Outcome, _: list[str]) -> None:
    report = environment.folder / "review.json"
    code = environment.run("python", "-m", "lab.review", "--json", str(report))
    told = json.loads(report.read_text(encoding="utf-8"))
    over_threads = sum(row["threads"] is False for row in told["rows"])
    found.review = f"{told['verdict']} {len(told['rows'])} cases, {over_threads} differ over threads"
    listed = "from samebits.determinism._reviewed_schemas import not_reviewed as n; print(len(n()))"
    found.not_reviewed = environment.asked(listed).strip()
    if code:
        found.broken.append("review")


def _minutes(begin: float) -> float:
    return (time.monotonic() - begin) / 60


def _say(text: str) -> None:
    print(f"== {datetime.now(UTC):%H:%M:%S} {text}", flush=True)


_COLUMNS = ("torch", "triton", "passed", "failed", "skipped", "verify", "final digest of examples/digits.py")
_MORE = ("goldens", "op review", "not reviewed", "minutes")


def table(outcomes: list[Outcome]) -> str:
    """The outcomes in Markdown, and below it what failed."""
    lines = [" | ".join(("", *_COLUMNS, *_MORE, "")).strip(), "|---" * len((*_COLUMNS, *_MORE)) + "|"]
    for one in outcomes:
        tests = [str(one.tests.get(word, "-")) for word in ("passed", "failed", "skipped")]
        cells = (
            one.torch or one.asked,
            one.triton,
            *tests,
            one.verify,
            f"`{one.digest}`",
            one.goldens,
            one.review,
            one.not_reviewed,
        )
        lines.append(f"| {' | '.join((*cells, f'{one.minutes:.0f}'))} |")
    for one in outcomes:
        lines += [f"torch {one.torch or one.asked}: {what}" for what in (*one.broken, *one.failures)]
    return "\n".join(lines)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="make matrix", description=__doc__)
    parser.add_argument("torch", nargs="*", default=["oldest", "pinned", "newest"])
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="what pytest runs")
    asked = parser.parse_args()
    free = shutil.disk_usage(tempfile.gettempdir()).free / 1e9
    if free < ROOM_GB:
        print(
            f"make matrix: an environment takes 6 GB, and {tempfile.gettempdir()} has {free:.1f} GB free: set TMPDIR "
            "to a folder with more room.",
            file=sys.stderr,
        )
        return COULD_NOT_RUN
    outcomes: list[Outcome] = []
    try:
        for word in asked.torch or ["oldest", "pinned", "newest"]:
            outcomes.append(examine(word, asked.tests))
            _say(f"{len(outcomes)} of {len(asked.torch)} versions\n{table(outcomes)}")
    except KeyboardInterrupt:
        return 130
    return FAILED if any(one.broken for one in outcomes) else PASSED


if __name__ == "__main__":
    sys.exit(main())
