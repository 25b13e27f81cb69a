"""CHANGELOG.md and `changes/` are what towncrier reads: a file is made, shown as unreleased, and built into the page."""

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys

import pytest

MARK = "<!-- towncrier release notes start -->\n"
BUILD = ("build", "--version", "9.9.9", "--date", "2030-01-31")


@pytest.fixture
def clone(root, tmp_path):
    """What towncrier reads of this tree, in a repository without a fragment."""
    for file in ("CHANGELOG.md", "pyproject.toml", "changes/README.md"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(root / file, tmp_path / file)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


def towncrier(clone, *words):
    command = [sys.executable, "-m", "towncrier", *words]
    return subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)


def pasted(page):
    """The words behind `towncrier` in a page's command that makes a fragment."""
    return shlex.split(re.search(r"towncrier (create .*?)(?:`|$)", page.read_text(), re.MULTILINE)[1])


def test_the_commands_of_the_pages_make_a_fragment(root, clone):
    """CONTRIBUTING.md and changes/README.md: what is pasted makes the file that it names, and says so."""
    for page in (root / "CONTRIBUTING.md", root / "changes" / "README.md"):
        words = pasted(page)
        done = towncrier(clone, *words)
        assert done.returncode == 0, done.stderr
        made = clone / "changes" / words[1]
        assert words[1] == "+early-stopping.added.md" and made.read_text() == f"{words[3]}\n"
        made.unlink()


def test_a_build_adds_one_section_and_changes_nothing_else(root, clone):
    """Fragments become a section behind the mark, in the order of kinds, and are deleted; the page below stays."""
    before, after = (root / "CHANGELOG.md").read_text().split(MARK)
    texts = {
        "+a.added.md": "**A** is\nnew ([a](docs/index.md)).\n",
        "7.fixed.md": "B.\n",
        "+c.bits.md": "`BITS` is 9.\n",
    }
    for name, text in texts.items():
        (clone / "changes" / name).write_text(text)
    done = towncrier(clone, *BUILD, "--yes")
    assert done.returncode == 0, done.stderr
    section = """
## 9.9.9 - 2030-01-31

### Added

- **A** is
  new ([a](docs/index.md)).

### Fixed

- B. (#7)

### Bits

- `BITS` is 9.


"""
    built = (clone / "CHANGELOG.md").read_text()
    assert re.sub(r"\n{3,}", "\n\n", built) == re.sub(r"\n{3,}", "\n\n", before + MARK + section + after)
    assert [one.name for one in (clone / "changes").iterdir()] == ["README.md"]
    assert "already produced" in towncrier(clone, *BUILD, "--yes").stderr


def test_a_fragment_of_an_unknown_kind_fails_the_build(clone):
    """Negative control: towncrier names the file and writes nothing."""
    before = (clone / "CHANGELOG.md").read_text()
    (clone / "changes" / "+a.feature.md").write_text("A.\n")
    done = towncrier(clone, *BUILD, "--yes")
    assert done.returncode != 0 and "Invalid news fragment name: +a.feature.md" in done.stderr
    assert (clone / "CHANGELOG.md").read_text() == before


def test_the_site_shows_what_is_not_released(root, clone):
    """The page is CHANGELOG.md with the fragments in front, and links that lead from reference/; without any it says so."""
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location(
        "reference_pages", root / "docs" / "_ext" / "reference_pages.py"
    )
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    assert "## Unreleased\n\nNo significant changes.\n\n## 0.1.0" in pages.page_of_changes(clone)
    (clone / "changes" / "+a.added.md").write_text("A ([a](docs/index.md)).\n")
    page = pages.page_of_changes(clone)
    assert "## Unreleased\n\n### Added\n\n- A ([a](../index.md)).\n\n## 0.1.0" in page
    assert "docs/" not in page
    (clone / "changes" / "+a.feature.md").touch()
    with pytest.raises(Exception, match=r"(?s)^towncrier: .*: \+a.feature.md"):
        pages.page_of_changes(clone)
