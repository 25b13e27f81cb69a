"""Pages of docs/ as programs: their files are written, edited and run, and what they print is compared."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    """One fenced block: ```python train.py writes that file, ```diff train.py edits it, ```console runs commands."""

    language: str
    file: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """Yields the fenced blocks of a page, in order."""
    for match in FENCE.finditer(page.read_text()):
        yield Block(*match.groups())


def edited(source: str, diff: str) -> str:
    """Returns `source` after a diff without headers; what it takes away and its context are there exactly once."""
    lines = diff.splitlines(keepends=True)
    old = "".join(line[1:] for line in lines if line[0] in "- ")
    new = "".join(line[1:] for line in lines if line[0] in "+ ")
    assert f"\n{source}".count(f"\n{old}") == 1, f"not there once:\n{old}"
    return f"\n{source}".replace(f"\n{old}", f"\n{new}")[1:]


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yields each command of a console block with what the page says that it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def shell(command: str, folder: Path) -> str:
    """Runs a command line in `folder` and returns what it prints on both streams; times out after ten minutes."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path, "COLUMNS": "110"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
    ).stdout  # fmt: skip


def comparable(output: str, folder: Path | None = None) -> str:
    """Returns output without what differs between two runs: paths, times, digests, progress, the table, wrapping."""
    text = output if folder is None else output.replace(str(folder), "/home/you")
    lines = [
        line
        for line in text.splitlines()
        if not re.match(r"[+|]|[^\x00-\x7f]|\d+ of \d+ runs|compiled \d+ kernels", line)
    ]
    text = re.sub(r"xxh3-128:[0-9a-f]{32}", "DIGEST", " ".join(" ".join(lines).split()))
    text = re.sub(r"\d+(\.\d+)? (s|ms)\b", "TIME", re.sub(r"\(--seed \d+\)", "SEED", text))
    return re.sub(r"\d\.\d{6,}", "NUMBER", text)


def with_seed(command: str, output: str) -> str:
    """Returns the command with the `--seed` that its output on the page shows, so that the same kills are drawn."""
    seed = re.search(r"\(--seed (\d+)\)", output)
    return command.replace("samebits verify", f"samebits verify --seed {seed[1]}") if seed else command


def run_and_compare(text: str, folder: Path) -> int:
    """Runs the commands of a console block, and compares what they print with the page; returns how many there were.

    "..." on the page stands for anything.
    """
    number = 0
    for number, (command, shown) in enumerate(commands(text), 1):
        printed = comparable(shell(with_seed(command, shown), folder), folder)
        pattern = re.escape(comparable(shown)).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, printed), (
            f"$ {command}\n{printed}\nand on the page:\n{comparable(shown)}"
        )
    return number
