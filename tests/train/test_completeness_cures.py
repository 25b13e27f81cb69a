"""What an error says to paste works: a robot pastes it, and the program passes and resumes with equal weights."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import paste_robot
from paste_programs import FIRST, KINDS, OWN, PROGRAMS, UNSAVABLE, UNSEEN, WORDS, of_kinds
from script_pairs import BROKEN

pytestmark = pytest.mark.usefixtures("one_thread")


def judge(name, outcome):
    """At most two pastes to equal weights; or none, where an error says in words what to do."""
    pasted = [lines for _, lines in outcome.rounds]
    if name in WORDS:
        assert outcome.verdict == "words" and pasted == [0], (str(outcome), outcome.text)
    else:
        assert outcome.verdict == "equal", (str(outcome), outcome.messages, outcome.text)
        assert len(pasted) <= 2 and 0 not in pasted, (str(outcome), outcome.messages)


@pytest.mark.slow
@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", sorted(FIRST))
def test_pasted_lines_make_a_program_resume(name, tmp_path):
    """A trainer's method, and clients with loaders: pasted once or twice, equal weights."""
    judge(name, paste_robot.cured(PROGRAMS[name], tmp_path))


@pytest.mark.slow
def test_run_state_takes_what_is_typed_for_each_kind(tmp_path):
    """One message names variables of 35 kinds, and its lines make the program resume with equal weights."""
    outcome = paste_robot.cured(of_kinds(KINDS), tmp_path)
    judge("kinds", outcome)
    assert len(outcome.rounds) == 1, str(outcome)
    named = [name for name in KINDS if f"  - {name} (" in outcome.messages[0]]
    assert named == [*KINDS], outcome.messages[0]


def test_what_no_line_can_save_is_named_with_the_reason(tmp_path):
    """For a tensor with a graph, flags, an object in a tuple and the like the message types no line."""
    outcome = paste_robot.cured(of_kinds(UNSAVABLE), tmp_path)
    assert outcome.verdict == "words", (str(outcome), outcome.text)
    for name in UNSAVABLE:
        assert re.search(rf"  - {name} \(.*No line can save it: {name}\S* is ", outcome.text), (
            name,
            outcome.text,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - FIRST - UNSEEN))
def test_no_cure_fails(name, tmp_path):
    """Each program passes after at most two pastes, or its error offers no line at all."""
    judge(name, paste_robot.cured(PROGRAMS[name], tmp_path))


@pytest.mark.soak
@pytest.mark.parametrize("script", BROKEN, ids=lambda script: script.stem)
def test_no_cure_of_a_broken_script_fails(script, tmp_path):
    """What a script of tests/broken is told to paste makes it resume with equal weights."""
    outcome = paste_robot.cured(script.read_text(), tmp_path)
    pasted = [lines for _, lines in outcome.rounds if lines]
    assert len(pasted) <= 2, str(outcome)
    assert not pasted or outcome.verdict == "equal", (str(outcome), outcome.messages, outcome.text)


def test_the_robot_sees_a_cure_that_fails(tmp_path):
    """Without the check a program ends with other weights: the robot says so, and pastes nothing."""
    text = PROGRAMS["minGPT: a trainer's method"].replace("save=3", "save=3, check_complete=False")
    outcome = paste_robot.cured(text, tmp_path)
    assert (outcome.rounds, outcome.verdict) == ([], "OTHER WEIGHTS")


def test_the_robot_changes_the_lines_that_are_named_and_no_others():
    """A variable gets its new name in these lines: no attribute, keyword, string or other line does."""
    text = 'k = 0\nf(k=k, a=x.k)\nprint(f"{k}: k", "k")\nk += 1\n'
    wanted = 'k = 0\nf(k=run.state.k, a=x.k)\nprint(f"{run.state.k}: k", "k")\nk += 1\n'
    assert paste_robot.renamed(text, "k", "run.state.k", paste_robot.lines_in("2-3")) == wanted


@pytest.mark.slow
def test_the_places_are_lines_of_the_program(tmp_path):
    """A program that a process of its own runs in its folder is told the file's name as that folder has it."""
    (script := tmp_path / "train.py").write_text(OWN["sums of an epoch"])
    process = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True)
    number = next(
        n for n, line in enumerate(Path(script).read_text().splitlines(), 1) if "run.epochs(" in line
    )
    assert f"To save them, in train.py, before line {number}:" in process.stderr, process.stderr
