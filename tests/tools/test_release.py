"""`make release`: what it refuses, and what it finds wrong in a wheel and in an installation."""

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

import samebits

FILES = ("pyproject.toml", "src/samebits/_context.py", "tools/release.py")
GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]


@pytest.fixture
def clone(root, tmp_path):
    """A repository, whose version is 9.9.9, with what is read before anything is built."""
    for file in FILES:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(root / file, tmp_path / file)
    set_version(tmp_path, "9.9.9")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(tmp_path)
    return tmp_path


def set_version(clone, version, *files):
    for file, name in (("pyproject.toml", "version"), ("src/samebits/_context.py", "VERSION")):
        if not files or file in files:
            lines = (clone / file).read_text().splitlines()
            changed = [f'{name} = "{version}"' if one.startswith(f"{name} = ") else one for one in lines]
            (clone / file).write_text("\n".join(changed) + "\n")


def commit(clone):
    subprocess.run([*GIT, "add", "-A"], cwd=clone, check=True)
    subprocess.run([*GIT, "commit", "-qm", "a"], cwd=clone, check=True)


def release(clone, *words):
    """(exit status, first line of standard error); an interpreter without site-packages has neither build nor twine."""
    command = [sys.executable, "-I", "-S", clone / "tools" / "release.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "" and not (clone / "dist").exists()
    return done.returncode, done.stderr.split("\n")[0]


def test_a_tree_with_changes_is_refused(clone):
    """A new file, and a changed one: exit status 2, and nothing is built."""
    (clone / "new.txt").touch()
    words = "release: the tree has changes that are not committed. Commit or stash them:"
    assert release(clone) == (2, words)
    (clone / "new.txt").unlink()
    (clone / "pyproject.toml").write_text((clone / "pyproject.toml").read_text() + "\n")
    assert release(clone) == (2, words)


def test_a_version_that_has_a_tag_is_refused(clone):
    """v9.9.9 is there; another tag is none of its business (the next refusal is of a missing tool)."""
    subprocess.run([*GIT, "tag", "v9.9.90"], cwd=clone, check=True)
    assert "not installed" in release(clone)[1]
    subprocess.run([*GIT, "tag", "v9.9.9"], cwd=clone, check=True)
    assert release(clone) == (
        2, "release: there is a tag v9.9.9 already. Raise `version` in pyproject.toml and `VERSION`.",
    )  # fmt: skip


def test_a_development_version_is_refused_unless_it_is_asked_for(clone):
    """With --allow-dev the next refusal comes: a tool that is missing, with the line that installs it."""
    set_version(clone, "9.9.9.dev0")
    commit(clone)
    status, line = release(clone)
    assert status == 2 and line.endswith("or try: make release ARGS=--allow-dev")
    status, line = release(clone, "--allow-dev")
    assert status == 2 and line.startswith("release: build, hatchling, twine: not installed. Type ")
    assert line.endswith("-m pip install -c constraints.txt -e '.[release]'")


def test_two_versions_in_one_tree_are_refused(clone):
    """The version of the package and the one that it imports as are equal."""
    set_version(clone, "9.9.8", "src/samebits/_context.py")
    commit(clone)
    assert release(clone) == (
        2, "release: pyproject.toml says version 9.9.9, src/samebits/_context.py 9.9.8. Make them equal.",
    )  # fmt: skip


def test_fragments_that_are_left_are_refused(clone):
    """A release has each change in CHANGELOG.md; a .dev version may have fragments, and a README is none."""
    (clone / "changes").mkdir()
    (clone / "changes" / "README.md").touch()
    commit(clone)
    assert "not installed" in release(clone)[1]
    (clone / "changes" / "+a.fixed.md").touch()
    commit(clone)
    assert release(clone) == (
        2, "release: in no section of CHANGELOG.md yet: +a.fixed.md in changes/. "
        "Type .venv/bin/towncrier build --version 9.9.9, read what it wrote, and commit.",
    )  # fmt: skip
    set_version(clone, "9.9.9.dev0")
    commit(clone)
    assert "not installed" in release(clone, "--allow-dev")[1]


@pytest.fixture
def tool(root):
    spec = importlib.util.spec_from_file_location("release", root / "tools" / "release.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NEEDED = ("samebits/audit/_verify/demo.py", "samebits/py.typed", "samebits/_native/packs/x86-64-v3.zip")


def wheel_of(folder, *names):
    with ZipFile(folder / "a.whl", "w") as made:
        for name in ("samebits-9.9.9.dist-info/METADATA", *names):
            made.writestr(name, "")
    return folder / "a.whl"


def test_a_wheel_with_more_or_less_than_the_package_is_refused(tool, tmp_path):
    """Tests in it, and kernels missing from it, are named (negative control: a right one passes)."""
    tool.check_content(wheel_of(tmp_path, *NEEDED))
    with pytest.raises(tool.ReleaseError, match=r"too much: \['lab', 'tests'\]; missing: \[\]"):
        tool.check_content(wheel_of(tmp_path, *NEEDED, "tests/a.py", "lab/b.py"))
    with pytest.raises(tool.ReleaseError, match=r"missing: \['samebits/_native/packs/'\]"):
        tool.check_content(wheel_of(tmp_path, *NEEDED[:2]))


def test_an_sdist_has_only_what_is_committed(clone, tool, monkeypatch):
    """A file of no commit in it is named (negative control: without it the sdist passes)."""
    monkeypatch.setattr(tool, "ROOT", clone)
    sdist = clone / "a.tar.gz"
    with tarfile.open(sdist, "w:gz") as made:
        made.add(clone / "pyproject.toml", "a-9.9.9/pyproject.toml")
    tool.check_sources(sdist)
    (clone / "cache").touch()
    with tarfile.open(sdist, "w:gz") as made:
        made.add(clone / "cache", "a-9.9.9/cache")
    with pytest.raises(tool.ReleaseError, match=r"files of no commit: \['cache'\]"):
        tool.check_sources(sdist)


def test_other_bits_than_those_of_the_page_are_refused(tool, root):
    """Another digest, and another verdict, are named (negative control: those of the page pass)."""
    page = (root / "docs" / "start" / "install.md").read_text()
    good = {"verdict": "VERIFIED: the same bits.", "final": re.search(r"xxh3-128:\w+", page)[0]}
    tool.check_report(good)
    for wrong in ({"final": "xxh3-128:0"}, {"verdict": "REPRODUCED: the same bits."}):
        with pytest.raises(tool.ReleaseError, match=f"{next(iter(wrong.values()))}.*install.md shows"):
            tool.check_report(good | wrong)


def test_a_wheel_whose_kernels_are_compiled_is_refused(tool, tmp_path):
    """A file in the cache is a kernel that was compiled; an sdist that compiles none was not what ran."""
    tool.check_kernels(tmp_path / "cache", compiles=False)
    with pytest.raises(tool.ReleaseError, match="0 kernels"):
        tool.check_kernels(tmp_path / "cache", compiles=True)
    (tmp_path / "cache" / "kernels-1").mkdir(parents=True)
    tool.check_kernels(tmp_path / "cache", compiles=False)
    (tmp_path / "cache" / "kernels-1" / "fold").touch()
    tool.check_kernels(tmp_path / "cache", compiles=True)
    with pytest.raises(tool.ReleaseError, match=r"1 kernels were compiled \['fold'\]"):
        tool.check_kernels(tmp_path / "cache", compiles=False)


@pytest.mark.slow
def test_an_installation_is_checked_by_its_own_programs(tool, tmp_path):
    """This environment, which compiles, passes with an empty cache; as an installation of another version it does not."""
    programs = Path(sys.executable).parent
    with pytest.raises(tool.ReleaseError, match=r"is imported, not 0\.0\.1"):
        tool.check_demo(programs, tmp_path, "0.0.1", compiles=True)
    tool.check_demo(programs, tmp_path, samebits.__version__, compiles=True)
