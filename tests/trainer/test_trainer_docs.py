"""The code in docs/how-to/saving.md runs."""

import re

import pytest


@pytest.mark.slow
def test_the_page_runs(python, root):
    """All Python blocks of the page, one after the other as one program: they run, and resume what they left."""
    page = (root / "docs" / "training.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 7
    source = "\n".join(blocks)
    first = python(source)
    assert "epoch 3/3" in first.stderr
    again = python(source)
    assert "had finished" in again.stderr
    started, restarted = first.stdout.splitlines(), again.stdout.splitlines()
    assert (started[0], restarted[0]) == ("False False", "True True")  # run.resumed and run.finished
    assert restarted[1:] == started[1:]
