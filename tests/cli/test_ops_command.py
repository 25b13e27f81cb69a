"""The command `samebits ops`: as a process, and on a terminal of its own."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from samebits.cli._commands.ops_command import ops
from samebits.errors import InvalidArgumentError

COMMAND = [sys.executable, "-m", "samebits", "ops"]


def run(*words, cwd=None):
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120, cwd=cwd)


def test_without_filters_the_counts_come_first_and_then_what_needs_attention(tmp_path):
    """Plain lines in a pipe: counts by verdict and device, evidence "none", the version; then no more than a few pages."""
    done = run("--json", "all.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    content = json.loads((tmp_path / "all.json").read_text())
    first = lines[0].split()
    assert int(first[0]) * 2 == len(content["ops"]) and content["torch"] in lines[0]
    none = next(line for line in lines if 'evidence "none"' in line).split()
    counted = [
        sum(e["evidence"] == "none" and e["device"] == d for e in content["ops"]) for d in ("cpu", "cuda")
    ]
    assert [int(none[-3]), int(none[-1])] == counted
    refused = next(line for line in lines if line.split()[0] == "refused").split()
    assert int(refused[-1]) == sum((e["verdict"], e["device"]) == ("refused", "cuda") for e in content["ops"])
    assert len(lines) < 120 and any(
        line.startswith("cuda  refused") and "grid_sampler_2d_backward" in line for line in lines
    )
    assert "\x1b" not in done.stdout and not any(line != line.rstrip() for line in lines)


@pytest.mark.slow
def test_what_the_heading_says_is_not_said_again_in_the_reason():
    """An op whose bits follow the thread count: the heading says so, once; what it depends on stands behind."""
    done = run("--op", "add.Tensor", "--device", "cpu")
    line = next(line for line in done.stdout.splitlines() if "  add.Tensor  " in line)
    assert line.count("bits change with the thread count") == 1 and "an alpha other than 1" in line


@pytest.mark.slow
def test_filters_choose_entries_and_the_file_holds_what_is_shown(tmp_path):
    """Substring or glob of the name, device, verdict, evidence; one line for each overload and device."""
    done = run(
        "--op", "cumsum*", "--device", "cuda", "--verdict", "refused", "--json", "few.json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if line.startswith("cuda")]
    names = [line.split("  ")[2] for line in shown]
    assert [name for name in names if "dimname" not in name] == [
        "cumsum",
        "cumsum.out",
        "cumsum_",
    ]  # torch 2.11
    held = json.loads((tmp_path / "few.json").read_text())["ops"]
    assert [entry["op"] for entry in held] == [f"aten::{name}" for name in names]


def test_filters_that_leave_nothing_say_so(capsys):
    """Negative control of the filters: 0 entries."""
    ops(op="cumsum", device="cuda", evidence=["battery"])
    assert "\n0 of " in capsys.readouterr().out


def test_all_prints_every_entry(capsys):
    """One line for each of the overloads and devices."""
    ops(everything=True)
    lines = capsys.readouterr().out.splitlines()
    total = int(lines[0].split()[0]) * 2
    assert sum(line.startswith(("cpu ", "cuda ")) for line in lines) == total
    assert lines[-1] == f"{total} of {total} entries"


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"verdict": ["bad"]}, "'deterministic over threads', 'deterministic', 'has an alternative here'"),
        ({"device": "tpu"}, "'cpu', 'cuda'"),
        ({"evidence": ["hope"]}, "'battery', 'opinfo', 'source', 'none'"),
        ({"op": "grid_sampel"}, "near it: grid_sampler"),
    ],
)
def test_a_filter_that_there_is_not_is_refused_with_the_choices(filters, said, capsys):
    """One sentence, before anything is printed."""
    with pytest.raises(InvalidArgumentError) as error:
        ops(**filters)
    assert said in str(error.value) and capsys.readouterr().out == ""


def test_a_bad_filter_ends_the_process_with_2():
    """One line on standard error, nothing on standard output."""
    done = run("--verdict", "bad")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert "choose from" in done.stderr


def on_terminal(columns):
    """What a person sees on a terminal of so many columns."""
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
            os.environ.update(TERM="xterm")
            os.environ.pop("COLUMNS", None)
            sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
            ops()
            sys.stdout.flush()
        finally:
            os._exit(0)
    read = b""
    try:
        while chunk := os.read(terminal, 65536):
            read += chunk
    except OSError:  # how a terminal ends
        pass
    os.waitpid(pid, 0)
    return re.sub(r"\x1b\[[0-9;]*m", "", read.decode().replace("\r", "")).splitlines()


@pytest.mark.parametrize("columns", [80, 200])
def test_on_a_terminal_no_line_is_wider_than_it(columns):
    """Tables with headings that fit; negative control: the wide one has lines that do not fit in 80."""
    lines = on_terminal(columns)
    assert "cuda: refused" in lines
    assert 79 <= max(map(len, lines)) <= columns
    assert columns == 80 or max(map(len, lines)) > 80
