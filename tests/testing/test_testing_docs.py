"""docs/how-to/testing.md is true: its code runs, and what it prints is what the page says."""

import re

import pytest

SNIPPETS = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.slow
def test_the_snippets_run_and_print_what_the_page_says(root, python):
    """All snippets in order, as one script: they raise nothing, and name the attribute that was left out."""
    page = (root / "docs" / "testing.md").read_text()
    printed = python("\n".join(SNIPPETS.findall(page))).stdout.splitlines()
    shown = " ".join(re.search(r"```text\n(.*?)\n```", page, re.DOTALL).group(1).split())
    assert re.fullmatch(re.escape(shown).replace(r"\.\.\.", "[0-9a-f]+"), printed[0]), printed
    assert printed[1].startswith("('in step 2', 'while saving before step ")
