"""The README: one screen, whose code runs when pasted and whose figures are those of the pages that measured them."""

import re
import subprocess
import sys

import pytest

LINES, COLUMNS, WORDS = 80, 110, 700


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


def tables(page, heading):
    """The tables of one section of a page, each a list of rows of cells."""
    section = re.split(r"^## ", page.read_text().split(f"## {heading}\n", 1)[1], flags=re.MULTILINE)[0]
    found = re.findall(r"(?:^\|.*\n?)+", section, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        for table in found
    ]


def column(page, heading, title):
    """All numbers in the columns of this title, in the tables of a section; the numbers in brackets are left out."""
    cells = [
        row[place]
        for table in tables(page, heading) for place, cell in enumerate(table[0]) if re.fullmatch(title, cell)
        for row in table[2:]
    ]  # fmt: skip
    return [
        float(number)
        for cell in cells
        for number in re.sub(r"\([^)]*\)", "", cell).split("/")
        if number.strip()
    ]


def between(numbers):
    return f"{min(numbers):.2f} to {max(numbers):.2f}"


def cost(readme, asked):
    """The cost of the row of the promise table that asks for this."""
    row = next(
        line
        for line in readme.splitlines()
        if line.startswith("|") and re.search(rf"\| `{re.escape(asked)}`[ ,]", line)
    )
    return row.strip("|").split("|")[-1].strip()


def test_the_readme_is_one_screen(readme):
    """At most 80 lines of 110 ASCII characters, and 700 words; negative control: a line more, or a longer one, is too large."""
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


def costs(root):
    """The costs of the README's table, by what one asks for, computed from the pages that measured them."""
    evidence, anywhere = root / "docs" / "evidence", root / "docs" / "how-to" / "every-cpu.md"
    benchmarks, data = evidence / "benchmarks.md", evidence / "benchmarks-data.md"
    steps = "Whole training steps"
    machine = column(benchmarks, steps, "any CPU") + column(
        anywhere, "What it costs", r"transformer.*|convnet.*|MLP.*|LSTM.*"
    )
    budget = [
        float(number)
        for table in tables(data, "Commits") for row in table if row[0] == "samebits"
        for number in row[3].split("/")
    ]  # fmt: skip
    loader = column(data, "Input pipelines", "samebits' speed in times of torch's")
    ours = f"{min(machine):.2f} (faster) to {max(machine):.2f} of torch's time"
    return {
        "enable_op_determinism()": f"{between(column(benchmarks, steps, 'switch'))} of torch's time",
        "samebits.Run": f"aims at 3% (measured: {between(budget)} of the time)",
        "samebits.data.DataLoader": f"{min(loader):.2f} (slower) to {max(loader):.2f} times the speed of torch's loader",
        'enable_op_determinism(across="threads")': ours,
        'enable_op_determinism(across="machines")': ours,
    }


def wrong_costs(readme, root):
    return {asked for asked, said in costs(root).items() if cost(readme, asked) != said}


def test_figures_are_those_of_the_pages_that_measured_them(readme, root):
    """Each cost is computed from the tables of a page; negative control: another number is found."""
    assert wrong_costs(readme, root) == set()
    assert wrong_costs(re.sub(r"\d\.\d\d to", "0.50 to", readme), root) >= {
        "enable_op_determinism()",
        "samebits.Run",
    }


def test_the_page_on_levels_has_the_figures_of_the_readme(readme, root):
    """Each range of numbers in the README's table of promises stands in docs/start/which-level.md; negative control: another."""
    page = (root / "docs" / "start" / "which-level.md").read_text()
    ranges = {re.search(r"[\d.]+(?: \(\w+\))? to [\d.]+", cost(readme, asked))[0] for asked in costs(root)}
    plain = {re.sub(r" \(\w+\)", "", one) for one in ranges}
    assert len(plain) == 4 and all(one in page for one in plain)
    assert "0.50 to 0.60" not in page
