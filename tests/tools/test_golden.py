"""`make golden`: the texts in tests/golden hold, and a bit that moves is found and named."""

import importlib.util
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

import samebits.arithmetic
from samebits.audit._verify.check_process import AVX2_ENVIRONMENT

QUICK = ("layers", "rounding", "steps", "commits", "recurrent")
"""Sections of the text of a CPU that a test computes anew: half a minute of one core."""


@pytest.fixture
def golden(root):
    spec = importlib.util.spec_from_file_location("golden", root / "tools" / "golden" / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def lines_of(golden, name, sections):
    """The lines of a text that are of these sections."""
    lines = (golden.TEXTS / name).read_text().splitlines()
    return [line for line in lines if line.split(" ", 1)[0] in sections]


@pytest.mark.slow
def test_random_numbers_seeds_pipelines_and_loaders_are_those_of_every_cpu(golden):
    """Draws, seeds, pipelines and loaders have the digests of tests/golden/anywhere.txt, whatever the machine."""
    sections = [name for name in golden.ANYWHERE if name not in golden.MACHINES]
    now = golden.tree_text(golden.ROOT, sections)
    assert golden.compare(golden.held(sections), now) == []
    assert len(now) > 300


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["this", "played"])
@pytest.mark.parametrize("section", ["machine_training", "machine_lengths"])
def test_what_machine_invariance_promises_is_that_of_every_cpu(golden, section, cpu, monkeypatch):
    """Trained weights, and functions at the lengths 1 to 100, have the digests of every CPU: on this one, and on one without AVX-512."""
    if cpu == "played":
        for name, value in AVX2_ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
    now = golden.tree_text(golden.ROOT, [section])
    assert golden.compare(golden.held([section]), now) == []
    assert len(now) >= 30


@pytest.mark.slow
def test_what_depends_on_the_cpu_is_that_of_this_cpus_text(golden):
    """Layers, rounding, steps, commits and recurrent layers have the digests that were written on this CPU, with this torch."""
    name = f"{golden.cpu_name()}.txt"
    if not (golden.TEXTS / name).exists():
        pytest.skip(f"tests/golden has no {name}: the bits of these sections are those of a CPU")
    if golden.first_line() != (golden.TEXTS / name).read_text().splitlines()[0]:
        pytest.skip(f"tests/golden/{name} is not of torch {version('torch')} and this vector code")
    now = golden.tree_text(golden.ROOT, QUICK)
    assert golden.compare(lines_of(golden, name, QUICK), now) == []
    assert len(now) > 100


def test_a_fact_that_moved_is_written_only_with_a_new_version(golden, tmp_path, monkeypatch):
    """anywhere.txt is of this version; facts that moved are refused with it and written with the next, new facts always."""
    text = (golden.TEXTS / "anywhere.txt").read_text()
    assert text.startswith(f"# samebits.arithmetic.BITS = {samebits.arithmetic.BITS}\n")
    monkeypatch.setattr(golden, "TEXTS", tmp_path)
    (tmp_path / "anywhere.txt").write_text(text)
    facts = text.splitlines()[1:]
    golden.write([*facts, "machine_products new 1"])
    moved = [line[:-1] + "x" if line.startswith("machine_products") else line for line in facts]
    with pytest.raises(SystemExit, match="raise samebits.arithmetic.BITS first"):
        golden.write(moved)
    monkeypatch.setattr(golden, "BITS", samebits.arithmetic.BITS + 1)
    golden.write(moved)
    assert (tmp_path / "anywhere.txt").read_text() != text


def test_each_difference_is_told_by_name(golden):
    """A digest that moved, a fact that is new or gone, and a section that failed on either side are told; equal texts tell nothing."""
    before, after = ["a x 1", "a y 2", "a z 3"], ["a x 1", "a y 4", "b w 5", "!c failed"]
    told = golden.compare(before, after)
    assert told == ["now: c failed", "a y was 2, is 4", "a z is gone", "b w is new"]
    assert golden.compare(["!c failed"], []) == ["before: c failed"]
    assert golden.compare(before, before[::-1]) == []


@pytest.mark.slow
def test_a_section_that_fails_is_named_and_hides_no_other(golden, tmp_path):
    """In a tree without samebits every section fails, each by its name."""
    lines = golden.tree_text(tmp_path, ["seeds", "draws"])
    assert [line.split()[0] for line in lines] == ["!draws", "!seeds"]


def test_a_commit_that_there_is_not_is_one_line_and_exit_status_2(root):
    """BASE=nowhere: nothing is computed."""
    done = subprocess.run(
        [sys.executable, root / "tools" / "golden", "nowhere"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "golden: BASE=nowhere is no commit of this repository\n"


@pytest.mark.slow
def test_a_constant_that_was_changed_is_found_in_what_it_moves(root, tmp_path):
    """End to end, in a clone: equal to its own commit; after one digit of a constant of Philox has changed, each draw is named."""
    if not (root / ".git").exists():
        pytest.skip("no git repository")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", "--shared", root, clone], check=True)
    for part in ("tools", "src"):
        shutil.rmtree(clone / part, ignore_errors=True)
        shutil.copytree(root / part, clone / part, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", clone, "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "-m", "as it is"], check=True)

    def compared():
        command = [sys.executable, clone / "tools" / "golden", "HEAD", "--only", "seeds"]
        return subprocess.run(command, capture_output=True, text=True)

    equal = compared()
    assert equal.returncode == 0, equal.stdout + equal.stderr
    assert "facts are equal" in equal.stdout
    planted = [file for file in (clone / "src").rglob("*.py") if "0xD2511F53" in file.read_text()]
    assert planted, "the constant of Philox is written otherwise now: plant another one"
    for file in planted:
        file.write_text(file.read_text().replace("0xD2511F53", "0xD2511F51"))
    moved = compared()
    assert moved.returncode == 1, moved.stdout + moved.stderr
    assert "seeds 1/global was " in moved.stdout
    worktrees = subprocess.run([*git, "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert len(worktrees.splitlines()) == 1
