"""Pages of docs/ as programs: each fence runs, and what a page shows as output is what is printed.

| fence | what is done with it |
|---|---|
| ```python train.py | the file is written |
| ```diff train.py | the file is edited |
| ```console | each line that begins with "$ " runs; output below one is compared |
| ```python | with the others of the page it is one program, which runs at the end |
| ```text output | what that program prints |
| ```LANGUAGE not-run: REASON | nothing; such fences are counted |
| any other language (text, yaml, toml, ...) | nothing: it is no program |
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^( *)```(\w+)(?: ([^\n]*))?\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
NOT_RUN = "not-run: "
ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = {"python", "console", "diff", "bash"}
WIDTH = 98
"""Columns of a page's output."""


class Block(NamedTuple):
    """One fenced block."""

    language: str
    info: str
    """What stands behind the language: a file, "output", or "not-run: ..."."""
    text: str

    @property
    def runs(self) -> bool:
        """True for a program that is run, or a file that is written for one."""
        return self.language in PROGRAMS and not self.info.startswith(NOT_RUN)


def blocks(page: Path) -> Iterator[Block]:
    """Yields the fenced blocks of a page, in order."""
    for match in FENCE.finditer(page.read_text()):
        indent, language, info, text = match.groups()
        yield Block(language, info or "", re.sub(f"^{indent}", "", text, flags=re.MULTILINE))


Outputs = list[tuple[str, str, str]]
"""Each command whose output a page shows, what is shown, and what is printed."""


def run_page(page: Path, folder: Path, outputs: Outputs | None = None) -> list[str]:
    """Runs a page in a folder; returns each difference between what it shows and what is printed.

    What commands print is added to `outputs`.
    """
    wrong: list[str] = []
    program, shown = "", ""
    for block in blocks(page):
        if block.language == "text" and block.info == "output":
            shown += block.text
        if not block.runs:
            continue
        if block.language in {"console", "bash"}:
            wrong += of_console(block, folder, [] if outputs is None else outputs)
        elif block.language == "diff":
            (folder / block.info).write_text(edited((folder / block.info).read_text(), block.text))
        elif block.info:
            (folder / block.info).write_text(block.text)
        else:
            program += f"{block.text}\n"
    if program:
        (folder / "page.py").write_text(program)
        for _ in range(2 if "samebits.Run(" in program else 1):  # the second time each run is finished
            printed = run_shell("python page.py 2> errors.txt; echo exit status $?", folder)
            if not printed.endswith("exit status 0\n"):
                return [*wrong, f"the program of the page: {(folder / 'errors.txt').read_text()[-2000:]}"]
            if shown and not re.search(_pattern(shown), comparable(printed, folder)):
                return [*wrong, f"the program of the page prints:\n{printed}"]
    return wrong


def of_console(block: Block, folder: Path, outputs: Outputs) -> list[str]:
    """Runs the commands of a block one by one; if no output is shown, as one script: each must succeed."""
    pairs = list(commands(block.text))
    if any(shown for _, shown in pairs):
        return [text for command, shown in pairs if (text := compared(command, shown, folder, outputs))]
    # a program that the page kills may have ended by itself on a fast machine
    script = "\n".join(f"{one} || true" if "kill -9" in one else one for one, _ in pairs)
    printed = run_shell(f"trap 'echo exit status $?' EXIT; set -e\n{script}", folder)
    return [] if printed.endswith("exit status 0\n") else [f"{script}\n{printed[-2000:]}"]


def compared(command: str, shown: str, folder: Path, outputs: Outputs) -> str:
    """Runs a command; returns it with what it prints where the page shows something else."""
    printed = run_shell(with_seed(command, shown), folder)
    if not shown:
        return ""
    outputs.append((command, shown, printed))
    return "" if is_shown(printed, shown, folder) else f"$ {command}\n{printed}"


def is_shown(printed: str, shown: str, folder: Path) -> bool:
    """True if an output is what a page shows."""
    return re.fullmatch(_pattern(shown), comparable(printed, folder)) is not None


def _pattern(shown: str) -> str:
    return re.escape(comparable(shown)).replace(r"\.\.\.", ".*")


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


def run_shell(command: str, folder: Path) -> str:
    """Runs a command line in `folder` and returns what it prints on both streams; times out after ten minutes."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env={**os.environ, "PATH": path, "COLUMNS": str(WIDTH)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
    ).stdout  # fmt: skip


def shown_as(output: str, folder: Path) -> str:
    """Returns output as a page has it: without progress, and with a home instead of the folder."""
    lines = output.replace(str(folder), "/home/you").splitlines(keepends=True)
    return "".join(line for line in lines if not _PROGRESS.match(line))


_PROGRESS = re.compile(r"[^\x00-\x7f]|\d+ of \d+ runs|compiled \d+ kernels")


def comparable(output: str, folder: Path | None = None) -> str:
    """Returns output without what differs between two runs: paths, times, digests, progress, the table, wrapping."""
    text = output if folder is None else output.replace(str(folder), "/home/you")
    lines = [line for line in text.splitlines() if not re.match(r"[+|]", line) and not _PROGRESS.match(line)]
    text = re.sub(r"xxh3-128:[0-9a-f]{32}", "DIGEST", " ".join(" ".join(lines).split()))
    text = re.sub(r"\d+(\.\d+)? (s|ms)\b", "TIME", re.sub(r"\(--seed \d+\)", "SEED", text))
    return re.sub(r"\d\.\d{6,}", "NUMBER", text)


def with_seed(command: str, output: str) -> str:
    """Returns the command with the `--seed` that its output on the page shows, so that the same kills are drawn."""
    seed = re.search(r"\(--seed (\d+)\)", output)
    return command.replace("samebits verify", f"samebits verify --seed {seed[1]}") if seed else command
