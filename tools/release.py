"""Builds a release into dist/ and checks it in empty environments: `make release`. It uploads nothing.

    python tools/release.py [--allow-dev]

docs/releasing.md says what stands before it and behind it. Exit status: 0 built and checked, 1 a check failed, 2 refused:
nothing was built.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
BUILT, FAILED, REFUSED = 0, 1, 2
TOOLS = ("build", "hatchling", "twine")


class ReleaseError(Exception):
    """Raised for what must not be published; the text says what to do."""


def main() -> int:
    """Refuses, or builds and checks; prints each step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--allow-dev", action="store_true", help="build a .dev version too: one to try, not to publish"
    )
    asked = parser.parse_args()
    if reason := refusal(allow_dev=asked.allow_dev):
        print(f"release: {reason}", file=sys.stderr)
        return REFUSED
    try:
        sdist, wheel = build()
        _say("twine check")
        _run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
        check_sources(sdist)
        check_content(wheel)
        check_installed(sdist, compiles=True)
        check_installed(wheel, compiles=False)
    except (ReleaseError, subprocess.CalledProcessError) as error:
        print(f"release: {error}", file=sys.stderr)
        return FAILED
    _say(f"checked: {sdist.name}, {wheel.name}. Nothing was uploaded; docs/releasing.md goes on.")
    return BUILT


def refusal(*, allow_dev: bool) -> str:
    """Returns the reason why nothing may be built from this tree; empty if there is none."""
    version = _version("pyproject.toml", r'^version = "(.+)"$')
    imported = _version("src/samebits/_context.py", r'^VERSION = "(.+)"$')
    missing = [name for name in TOOLS if importlib.util.find_spec(name) is None]
    if changed := _git("status", "--porcelain"):
        return f"the tree has changes that are not committed. Commit or stash them:\n{changed.rstrip()}"
    if version != imported:
        return f"pyproject.toml says version {version}, src/samebits/_context.py {imported}. Make them equal."
    if _git("tag", "--list", f"v{version}"):
        return f"there is a tag v{version} already. Raise `version` in pyproject.toml and `VERSION`."
    if ".dev" in version and not allow_dev:
        return f"{version} is a version for development. Set the one to publish, or try: make release ARGS=--allow-dev"
    if (left := fragments()) and ".dev" not in version:
        return (
            f"in no section of CHANGELOG.md yet: {', '.join(left[:3])}{', ...' * (len(left) > 3)} in changes/. "
            f"Type .venv/bin/towncrier build --version {version}, read what it wrote, and commit."
        )
    if missing:
        return (
            f"{', '.join(missing)}: not installed. "
            f"Type {sys.executable} -m pip install -c constraints.txt -e '.[release]'"
        )
    return ""


def fragments() -> list[str]:
    """Returns the names of the files that describe changes for the next section of CHANGELOG.md."""
    return sorted(one.name for one in (ROOT / "changes").glob("*.md") if one.name != "README.md")


def build() -> tuple[Path, Path]:
    """Empties dist/ and returns the sdist and the wheel in it, which has compiled kernels."""
    shutil.rmtree(DIST, ignore_errors=True)
    _say("sdist")
    _run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST, ROOT)
    _say("wheel, with compiled kernels (minutes)")
    _run(sys.executable, ROOT / "tools" / "wheel.py", "--into", DIST)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def check_sources(sdist: Path) -> None:
    """Raises `ReleaseError` if an sdist has files that the commit does not have, such as the caches of tools."""
    with tarfile.open(sdist) as content:
        names = {one.name.partition("/")[2] for one in content.getmembers() if one.isfile()}
    if more := sorted(names - {"PKG-INFO"} - set(_git("ls-files").splitlines())):
        raise ReleaseError(f"{sdist.name}: files of no commit: {more[:3]}. Exclude them in pyproject.toml.")


def check_content(wheel: Path) -> None:
    """Checks that a wheel has the package with its example and kernels, and nothing else: no tests, lab, tools, docs.

    Raises `ReleaseError` that names what is too much, or missing.
    """
    with ZipFile(wheel) as content:
        names = content.namelist()
    tops = {name.partition("/")[0] for name in names}
    more = sorted(top for top in tops if top != "samebits" and not top.endswith(".dist-info"))
    needed = ("samebits/audit/_verify/demo.py", "samebits/py.typed", "samebits/_native/packs/")
    missing = [name for name in needed if not any(one.startswith(name) for one in names)]
    if more or missing:
        raise ReleaseError(f"{wheel.name}: too much: {more}; missing: {missing}. See hatch_build.py.")


def check_installed(file: Path, *, compiles: bool) -> None:
    """Installs a file into an empty environment, imports samebits there and verifies the example.

    Raises `ReleaseError` unless that is VERIFIED with the digest of docs/start/install.md; and, unless `compiles`,
    if a kernel was compiled.
    """
    with tempfile.TemporaryDirectory(prefix="samebits-release-") as name:
        folder = Path(name)
        _say(f"{file.name}: an empty environment")
        install(file, folder / "venv")
        version = _version("pyproject.toml", r'^version = "(.+)"$')
        check_demo(folder / "venv" / "bin", folder, version, compiles=compiles)
        _say(f"{file.name}: VERIFIED")


def install(file: Path, environment: Path) -> None:
    """Makes an environment with the pinned torch (TORCH_BUILD chooses cpu or cuda) and a file of dist/."""
    _run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    _run(ROOT / "tools" / "install_torch", python, os.environ.get("TORCH_BUILD", ""))
    _run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", file)


def check_demo(bin_folder: Path, folder: Path, version: str, *, compiles: bool) -> None:
    """Imports samebits and runs `samebits verify --demo`, with an empty cache in `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    variables = {**kept, "SAMEBITS_CACHE_DIR": str(folder / "cache")}
    code = "import samebits; print(samebits.__version__)"
    imported = subprocess.run(
        [bin_folder / "python", "-c", code],
        cwd=folder,
        env=variables,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    if imported != version:
        raise ReleaseError(f"samebits {imported} is imported, not {version}.")
    report = folder / "report.json"
    demo = [bin_folder / "samebits", "verify", "--demo", "--json", report]
    subprocess.run(demo, cwd=folder, env=variables, check=True)
    check_report(json.loads(report.read_text(encoding="utf-8")))
    check_kernels(folder / "cache", compiles=compiles)


def check_report(report: dict[str, str]) -> None:
    """Raises `ReleaseError` unless a report of the example says VERIFIED, with the digest of docs/start/install.md."""
    page = (ROOT / "docs" / "start" / "install.md").read_text(encoding="utf-8")
    shown = re.findall(r"xxh3-128:\w+", page)
    if not report["verdict"].startswith("VERIFIED") or report["final"] not in shown:
        raise ReleaseError(
            f"{report['verdict']} The digest is {report['final']}; docs/start/install.md shows {shown}."
        )


def check_kernels(cache: Path, *, compiles: bool) -> None:
    """Raises `ReleaseError` if kernels were compiled into the cache, or none where they must be (`compiles`)."""
    kernels = sorted(path.name for path in cache.rglob("*") if path.is_file())
    if bool(kernels) != compiles:
        raise ReleaseError(
            f"{len(kernels)} kernels were compiled {kernels[:3]}: with the wheel none may be, with the sdist all are."
        )


def _version(file: str, pattern: str) -> str:
    found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise ReleaseError(f"{file} has no {pattern}")
    return found[1]


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _run(*command: Path | str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


def _say(text: str) -> None:
    print(f"== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
