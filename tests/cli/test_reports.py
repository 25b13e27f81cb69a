"""What the commands print on terminals of several widths and into a pipe, and one line for what is typed wrongly."""

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
import torch

from samebits.checkpoint import list_commits
from samebits.checkpoint._store import CommitStore
from store_commits import write_commit

DIGEST = "c3e11f52749e9fafc9b78d26bb751abf"
TABLE = f"""
from samebits.audit._first_difference import Difference
from samebits.audit._verify.check_plan import Check
from samebits.audit._verify.verify_report import CheckRow as Row, VerifyReport as Report
from samebits.audit._verify.check_process import Request
from samebits.audit._verify.verify_table import show
rows = (
    Row(Check("kill", "killed in a validation, then in a save, resumed twice", "SIGKILL in step 75's validation, saved before step 75; then SIGKILL while saving before step 78"), 152),
    Row(Check("kill", "killed mid-epoch, resumed", "SIGKILL in step 110's optimizer, saved before step 109"), 152, Difference(110, "optimizer", ("layers.0.attention.query.weight",))),
)
show(Report(Request("train.py", seed=3), "xxh3-128:{DIGEST}", {{}}, rows))
"""


def on_terminal(width, *words):
    """What a Python process prints on a terminal of `width` columns, without its colours."""
    main, side = pty.openpty()
    fcntl.ioctl(main, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "COLUMNS"} | {"TERM": "xterm"}
    child = subprocess.Popen(
        [sys.executable, *map(str, words)], stdin=side, stdout=side, stderr=side, env=environment
    )
    os.close(side)
    printed = b""
    try:
        while data := os.read(main, 65536):
            printed += data
    except OSError:  # the terminal is gone with its last process
        pass
    assert child.wait() in (0, 1), printed
    os.close(main)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", printed.decode()).replace("\r", "").splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_table_of_verify_uses_the_width_of_the_terminal(width):
    """No line is longer, the table is as wide as its text asks for, and the digest is whole in one line."""
    lines = on_terminal(width, "-c", TABLE)
    table = [line for line in lines if line.startswith(("\u2502", "\u256d"))]
    assert max(map(len, lines)) <= width and {len(line) for line in table} == {width}
    assert any(DIGEST in line for line in lines)
    assert len(table) < {80: 15, 120: 10, 200: 7}[width]  # what is wider has fewer lines


@pytest.fixture
def run(tmp_path):
    """A run directory with three commits, the first of which has lost its parent."""
    with CommitStore(tmp_path / "run", keep=3) as store:
        for step in range(1, 5):
            position = {"loop": "train", "epoch": 3, "batch_index": 7, "step": 0, "phase": "train"}
            state = {"objects": {"model": {"w": torch.arange(6.0) + step}}}
            write_commit(store, step, state, position=position, finished=False, program={}, environment={})
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 120, 200])
def test_digests_of_commits_are_never_cut(run, width):
    """Whole in one line from 120 columns on, folded in two below; a listed parent is told by its step."""
    lines = on_terminal(width, "-m", "samebits", "commits", run)
    assert max(len(line.rstrip()) for line in lines) <= width and not any("\u2026" in line for line in lines)
    for listed in list_commits(run):
        own = listed.manifest.digest.split(":")[1]
        pieces = [own] if width >= 120 else [own[:16], own[16:]]
        assert all(any(piece in line for line in lines) for piece in pieces)
    first = next(line for line in lines if line.split()[:1] == ["4"])
    assert " 3  " in first


def samebits(*words, **options):
    command = [sys.executable, "-m", "samebits", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, **options)


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 140])
def test_no_column_of_commits_is_left_out_on_a_narrow_terminal(run, width):
    """The state is there at any width: a damaged commit says so beside its step, and a whole one that it is whole."""
    tensors = next((run / "commits").glob("000000000003-*")) / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    lines = on_terminal(width, "-m", "samebits", "commits", run)
    text = " ".join(lines)
    assert all(
        re.search(rf"\b{column}\b", text) for column in ("step", "age", "size", "digest", "parent", "state")
    )
    listed = [line for line in lines if not line.startswith("0000")]  # the reason, below the table
    assert sum("whole" in line for line in listed) == 2 and sum("damaged" in line for line in listed) == 1
    assert all(
        any(own[:8] in line for line in lines)
        for own in (commit.manifest.digest.split(":")[1] for commit in list_commits(run))
    )


@pytest.mark.slow
def test_a_bar_shows_how_much_is_verified_on_a_terminal_alone(run):
    """On a terminal a bar of MB stands above the table until all is read; a pipe gets the same lines without it."""
    assert any(
        "MB of commits read" in line
        for line in on_terminal(100, "-m", "samebits", "commits", "--verify", run)
    )
    found = samebits("commits", "--verify", run)
    assert found.stdout.count("valid") == 3 and "\x1b" not in found.stdout and found.stderr == ""


def test_a_pipe_gets_plain_lines_with_whole_digests(run):
    """One line for each commit, without signs of a terminal."""
    out = samebits("commits", run).stdout
    assert "\x1b" not in out and len(out.splitlines()) == 4
    assert all(listed.manifest.digest.split(":")[1] in out for listed in list_commits(run))


@pytest.mark.slow
def test_env_is_a_table_on_a_terminal():
    """A line for each value on a terminal, and no JSON; `--json -` is JSON there, too (control)."""
    lines = on_terminal(100, "-m", "samebits", "env")
    assert any(re.fullmatch(r"threads +[0-9]+", line) for line in lines) and "{" not in "".join(lines)
    assert json.loads("".join(on_terminal(100, "-m", "samebits", "env", "--json", "-")))["threads"] >= 1


@pytest.mark.parametrize("seconds", ["-1", "0", "nan", "inf"])
def test_a_time_limit_that_is_none_is_refused(tmp_path, seconds):
    """`verify --timeout`: one line with the option, the value and what it takes; exit 2, nothing was started."""
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    done = samebits("verify", "--timeout", seconds, "--in-place", "train.py", cwd=tmp_path)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert f"--timeout '{seconds}'" in done.stderr and "600" in done.stderr
    assert os.listdir(tmp_path) == ["train.py"]


TRAIN = """
import sys, torch, samebits
samebits.set_random_seed(1)
with samebits.Run(sys.argv[1], model=torch.nn.Linear(2, 1)) as run:
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["", "/inner/run"])
def test_a_run_directory_that_is_a_link_to_nothing_is_told(tmp_path, python, inner):
    """A dangling symlink, as the folder or above it: where it leads, and the cure; nothing is made."""
    (tmp_path / "runs").symlink_to("/nowhere/scratch")
    done = python(TRAIN, f"runs{inner}", code=1)
    last = done.stderr.strip().splitlines()[-1]
    assert (
        "runs is a symbolic link to /nowhere/scratch, which is not there" in last
        and "remove the link" in last
    )
    assert sorted(os.listdir(tmp_path)) == ["runs", "script.py"]


def test_a_run_directory_that_is_a_link_to_a_folder_is_used(tmp_path, python):
    """Negative control: where the link leads somewhere, the run is there."""
    (tmp_path / "there").mkdir()
    (tmp_path / "runs").symlink_to("there")
    python(TRAIN.replace("pass", "list(run.steps([torch.ones(1)], epochs=1))"), "runs")
    assert "samebits-run.json" in os.listdir(tmp_path / "there")
