"""The README: one screen, whose code runs when pasted and whose figures are those of the runs that measured them."""

import re
import subprocess
import sys

import pytest

import doc_figures

LINES, COLUMNS, WORDS = 80, 100, 700


@pytest.fixture(scope="module")
def readme(request):
    return (request.config.rootpath / "README.md").read_text()


def python_blocks(text):
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def too_large(text):
    lines = text.splitlines()
    return (
        len(lines) > LINES
        or max(map(len, lines)) > COLUMNS
        or len(text.split()) > WORDS
        or not text.isascii()
    )


def cost(readme, asked):
    """The cost of the row of the promise table that asks for this."""
    row = next(
        line
        for line in readme.splitlines()
        if line.startswith("|") and re.search(rf"\| `{re.escape(asked)}`[ ,]", line)
    )
    return row.strip("|").split("|")[-1].strip()


def test_the_readme_is_one_screen(readme):
    """At most 80 lines of 100 ASCII characters, and 700 words; negative control: a line more, or a longer one, is too large."""
    assert not too_large(readme)
    assert too_large(readme + "\n" * LINES) and too_large(readme + "x" * (COLUMNS + 1))


def test_the_block_of_the_readme_runs_when_pasted(readme, tmp_path):
    """In a fresh process and folder; started again, it finds its finished run."""
    (block,) = python_blocks(readme)
    (tmp_path / "first.py").write_text(block)
    command = [sys.executable, "first.py"]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    assert "finished" in done.stderr and list((tmp_path / "runs" / "first").iterdir())


def test_the_digest_of_the_example_is_that_of_the_install_page(readme, root):
    """README and docs/start/install.md, with which `make release` compares, show one digest."""
    digest = re.compile("xxh3-128:[0-9a-f]{32}")
    page = (root / "docs" / "start" / "install.md").read_text()
    assert digest.findall(readme) == digest.findall(page) != []


@pytest.mark.slow
def test_verify_says_of_the_block_what_the_readme_says(readme, tmp_path):
    """VERIFIED with its kills; negative control: a Run without a directory cannot be resumed."""
    (block,) = python_blocks(readme)
    command = [sys.executable, "-m", "samebits", "verify", "--checks", "run-again,kill-mid-epoch", "first.py"]
    without = block.replace(
        'samebits.Run("runs/first", model=model, optimizer=optimizer)', "samebits.Run(None)"
    )
    for source, word in ((block, "VERIFIED"), (without, "NOT VERIFIED")):
        (tmp_path / "first.py").write_text(source)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert f"\n{word}: " in done.stdout, done.stdout


def switch_costs():
    intel, amd = (doc_figures.numbers(file, "steps", "switch") for file in ("steps-intel", "steps-amd"))
    return intel + amd


def costs():
    """The costs of the README's table, by what one asks for, computed from the files of the runs that measured them."""
    machines = doc_figures.numbers("steps-intel", "steps", "any CPU")
    for file in ("portable-intel", "portable-amd"):
        machines += doc_figures.numbers(file, "steps", "transformer|convnet|MLP|LSTM")
    budget = doc_figures.numbers("commits-intel", "commits", '`save="3%"`', "samebits")
    loader = doc_figures.numbers("loader-intel", "loader", "samebits' speed in times of torch's")
    ours = f"{min(machines):.2f} (faster) to {max(machines):.2f} of torch's time"
    return {
        "enable_op_determinism()": f"{doc_figures.between(switch_costs())} of torch's time",
        "samebits.Run": f"aims at 3% (measured: {doc_figures.between(budget)} of the time)",
        "samebits.data.DataLoader": f"{min(loader):.2f} (slower) to {max(loader):.2f} times torch's speed",
        'enable_op_determinism(across="threads")': ours,
        'enable_op_determinism(across="machines")': ours,
    }


def wrong_costs(readme):
    return {asked for asked, said in costs().items() if cost(readme, asked) != said}


def test_figures_are_those_of_the_runs_that_measured_them(readme):
    """Each cost is computed from docs/evidence/figures/; negative control: another number in the README is found."""
    assert wrong_costs(readme) == set()
    assert wrong_costs(re.sub(r"\d\.\d\d to", "0.50 to", readme)) >= {
        "enable_op_determinism()",
        "samebits.Run",
    }
    changed = readme.replace("0.88 (slower)", "0.89 (slower)")
    assert changed != readme and wrong_costs(changed) == {"samebits.data.DataLoader"}


def test_other_pages_have_the_figures_of_the_readme(readme, root):
    """Each range of numbers in the README's table of promises stands in docs/start/which-level.md, the first in faq.md; negative control: another."""
    page = (root / "docs" / "start" / "which-level.md").read_text()
    ranges = {re.search(r"[\d.]+(?: \(\w+\))? to [\d.]+", cost(readme, asked))[0] for asked in costs()}
    plain = {re.sub(r" \(\w+\)", "", one) for one in ranges}
    assert len(plain) == 4 and all(one in page for one in plain)
    assert "0.50 to 0.60" not in page
    switch = doc_figures.between(switch_costs())
    questions = (root / "docs" / "start" / "faq.md").read_text()
    assert switch in plain and f"takes {switch} of torch's time" in questions
