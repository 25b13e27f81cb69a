"""The scripts in tests/broken and their repairs in tests/repaired are pairs that a check can be judged by.

That each broken script really differs, and each twin does not, is what `samebits verify` is run on them for.
"""

import ast
import difflib
import re

import pytest

from script_pairs import BROKEN, TESTS, patch_of, repaired

COMPONENT = re.compile(r"component: (model|batch|loss|optimizer|locals:[\w.\[\]]+|state|steps)")
CHECK = re.compile(r"check: (run-again|kill|workers)")


def code_lines(script):
    """The lines behind the module's docstring."""
    text = script.read_text()
    return text.splitlines()[ast.parse(text).body[0].end_lineno :]


def test_there_are_as_many_twins_as_broken_scripts():
    """Each broken script has a repaired twin of its name, no twin is alone, and each row and component occurs."""
    assert [patch_of(p) for p in BROKEN] == sorted((TESTS / "repaired").iterdir())
    assert len(BROKEN) >= 24
    told = [(ast.get_docstring(ast.parse(p.read_text())) or "") for p in BROKEN]
    assert {CHECK.search(text)[1] for text in told} == {"run-again", "kill", "workers"}
    kinds = {COMPONENT.search(text)[1].split(":")[0] for text in told}
    # no "generators": Run sets them anew at each step, so a record shows the loss that follows from other ones
    assert kinds == {"model", "batch", "loss", "optimizer", "locals", "steps"}


@pytest.mark.parametrize("script", BROKEN, ids=lambda p: p.stem)
def test_a_broken_script_says_what_must_be_found(script):
    """The docstring is the defect, the component and the row that must fail; the code does not give it away."""
    defect, component, check = ast.get_docstring(ast.parse(script.read_text())).splitlines()
    assert len(defect) > 20
    assert COMPONENT.fullmatch(component)
    assert CHECK.fullmatch(check)
    assert not re.search(
        r"broken|bug|defect|not saved", "\n".join(code_lines(script)).replace('"broken"', "")
    )


@pytest.mark.parametrize("script", BROKEN, ids=lambda p: p.stem)
def test_a_twin_is_a_small_repair_of_the_same_script(script, tmp_path):
    """Between the two, at most 15 lines are changed, and at least one."""
    lines = list(difflib.ndiff(code_lines(script), code_lines(repaired(script, tmp_path))))
    gone, new = (sum(line.startswith(sign) for line in lines) for sign in "-+")
    assert 1 <= max(gone, new) <= 15
    assert f'"runs/{script.stem}' in script.read_text()
