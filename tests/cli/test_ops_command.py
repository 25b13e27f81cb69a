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
from samebits.cli._reports import ops_overview
from samebits.determinism import table
from samebits.determinism.table._verdict_names import ALTERNATIVE
from samebits.errors import InvalidArgumentError

COMMAND = [sys.executable, "-m", "samebits", "ops"]
SCREEN = 45
"""Lines of a terminal's window."""


def run(*words, cwd=None):
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=120, cwd=cwd)


def row_of(lines, family):
    return next(line for line in lines if line.startswith(family)).split()


def test_without_a_name_one_screen_shows_families_and_counts(tmp_path):
    """In a pipe: a screen of plain lines; the families' promises and the counts are those of the table in the JSON file."""
    done = run("--json", "all.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    entries = json.loads((tmp_path / "all.json").read_text())["ops"]
    assert len(lines) <= SCREEN and "\x1b" not in done.stdout
    assert not any(line != line.rstrip() for line in lines)
    assert row_of(lines, "eigenvalues, SVD")[-1] == "raises"
    assert row_of(lines, "Fourier transforms")[-1] == row_of(lines, "linear algebra")[-1] == "equal"
    assert row_of(lines, "activations")[-3:] == ["equal", "equal", "equal"]
    counted = next(
        line for line in done.stdout.replace("\n", " ").split(". ") if line.startswith("Any CPU: ")
    )
    refused, integers = (sum(e["machine"] == kind for e in entries) for kind in ("refused", "integers"))
    assert counted.endswith(f"{refused} raise, {integers} raise but for integers")
    nobody = sum((entry["evidence"], entry["device"]) == ("none", "cpu") for entry in entries)
    assert f"all but {nobody} (CPU)" in done.stdout


def test_a_family_shows_its_worst_op():
    """Negative control: one op that raises, or varies, among equal ones makes its family so."""
    assert ops_overview._family(["relu", "gelu"]) == ("equal", "equal", "equal")
    assert ops_overview._family(["relu", "linalg.svd"])[2] == "raises"
    assert ops_overview._family(["relu", "add"])[1] == "equal*"


@pytest.mark.parametrize(
    ("name", "op", "said"),
    [
        (
            "torch.linalg.svdvals",
            "aten::linalg_svdvals",
            "calls aten::_linalg_svd, which raises: LAPACK's bits follow the CPU",
        ),
        ("torch.linalg.eigh", "aten::linalg_eigh", "calls aten::_linalg_eigh, which raises: LAPACK's bits"),
        ("Tensor.svd", "aten::svd", "calls aten::_linalg_svd, which raises"),
        ("torch.linalg.lstsq", "aten::linalg_lstsq", "With q, r = linalg.qr(a)"),
    ],
)
def test_a_name_of_torch_finds_the_op_and_what_to_use_instead(name, op, said, capsys):
    """Functions, methods and their composites: the aten op, that it raises on any CPU, why, and the alternative."""
    ops(name)
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: {op}\n") and " raises " in out
    assert said in " ".join(out.split())


def test_every_name_has_a_row(capsys):
    """Ops that exist in place, layers and functions: each has an overload; an op without a kernel for a CPU says so."""
    for name in (
        "add_",
        "aten::relu_",
        "_fused_adamw_",
        "nn.CircularPad2d",
        *" ".join(ops_overview.FAMILIES.values()).split(),
    ):
        ops(name)
        lines = capsys.readouterr().out.splitlines()
        assert any(line.split()[1:3] == ["equal", "equal"] or "  equal " in line for line in lines[2:]), name
    ops("cudnn_convolution")
    assert "no kernel of cudnn_convolution for a CPU" in capsys.readouterr().out


def test_an_op_that_is_ours_is_not_shown_as_refused(capsys):
    """GELU, sigmoid and SiLU share their row with ops that raise on any CPU; each has its own word."""
    for name in ("gelu", "sigmoid", "silu", "softplus", "exp2", "pow", "mish", "atan2"):
        ops(f"torch.nn.functional.{name}")
        out = capsys.readouterr().out
        promises = [line for line in out.splitlines() if "raises for complex numbers" not in line]
        assert "raises" not in "".join(promises) and "equal" in out, out
    ops("torch.special.i0")
    assert "raises" in capsys.readouterr().out


def test_rows_are_grouped_by_what_they_promise_on_any_cpu(capsys):
    """Ops with one reason and two kinds under across='machines' have two rows."""
    ops(verdict=["has an alternative here"], device="cpu")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cpu ")]
    kinds = {
        name: re.search(r"\[any CPU: (\w+)\]$", row)[1] for row in rows for name in re.split(r", |  ", row)
    }
    assert kinds["gelu"] == kinds["_fft_c2c"] == "ours" and kinds["special_hermite_polynomial_h"] == "refused"
    for row in rows:
        kind = re.search(r"\[any CPU: (\w+)\]$", row)[1]
        for name in row.split("  ")[2].split(", "):
            assert table.lookup(f"aten::{name}", "cpu").machine == kind


@pytest.mark.slow
def test_what_raises_on_any_cpu_is_listed_by_family_with_what_to_use_instead(capsys):
    """`--machine refused` names composites as a program calls them, in a few screens, and what complex numbers alone raise in; `gelu` is not among them."""
    ops(machine="refused")
    complex_numbers, out = capsys.readouterr().out.split("\n\n", 1)
    assert complex_numbers.startswith("complex numbers alone: ")
    for name in ("linalg_inv", "det", "cumprod", "linalg_cross", "prod", "sqrt"):
        assert re.search(rf"\b{name}\b", complex_numbers), name
    assert not re.search(r"\b(gelu|exp|mul|stft|istft|matmul|div.Tensor)\b,", complex_numbers)
    for name in ("linalg_eigh", "svd", "linalg_svd", "linalg_lstsq", "igamma"):
        assert re.search(rf"\b{name}\b", out), name
    assert not re.search(r"\b(gelu|linalg_inv|stft)\b", out) and len(out.splitlines()) < 3 * SCREEN
    assert "eigenvalues, singular values: LAPACK's bits follow the CPU" in out


@pytest.mark.slow
def test_what_the_heading_says_is_not_said_again_in_the_reason():
    """An op whose bits follow the thread count: the heading says so, once; what it depends on stands behind."""
    done = run("add.Scalar", "--device", "cpu", "--verdict", "deterministic")
    line = next(line for line in done.stdout.splitlines() if "  add.Scalar  " in line)
    assert line.count("bits change with the thread count") == 1 and "the scalar tail" in line


@pytest.mark.slow
def test_filters_choose_entries_and_the_file_holds_what_is_shown(tmp_path):
    """A pattern of names, device, verdict, evidence: the JSON has each overload and device of the rows."""
    done = run("cumsum*", "--device", "cuda", "--verdict", ALTERNATIVE, "--json", "few.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if line.startswith("cuda")]
    held = json.loads((tmp_path / "few.json").read_text())["ops"]
    assert {entry["op"] for entry in held} >= {"aten::cumsum", "aten::cumsum.out", "aten::cumsum_"}
    assert {(entry["device"], entry["verdict"]) for entry in held} == {("cuda", ALTERNATIVE)}
    assert shown and all("cumsum" in line for line in shown)


def test_json_on_standard_output_stands_alone(capsys):
    """`--json -` prints JSON and nothing else."""
    ops("torch.cumsum", json_file="-")
    held = json.loads(capsys.readouterr().out)
    assert {entry["op"].partition(".")[0] for entry in held["ops"]} == {"aten::cumsum"}


def test_filters_that_leave_nothing_say_so(capsys):
    """Negative control of the filters: 0 entries."""
    ops("cumsum", device="cuda", evidence=["opinfo"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 entries")


def test_all_prints_every_entry(capsys):
    """One line for each of the overloads and devices."""
    ops(everything=True)
    lines = capsys.readouterr().out.splitlines()
    total = len(list(table.entries()))
    assert sum(line.startswith(("cpu ", "cuda ")) for line in lines) == total
    assert lines[-1].startswith(f"{total} entries")


def test_a_name_that_torch_does_not_have_is_refused_with_the_near_ones(capsys):
    """One sentence, before anything is printed; of a pattern too."""
    for name, said in (("torch.grid_sampel", "grid_sampler"), ("no_such_*", "--all")):
        with pytest.raises(InvalidArgumentError) as error:
            ops(name)
        assert said in str(error.value) and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--verdict", "bad"), "deterministic over threads, deterministic, has an alternative here"),
        (("--device", "tpu"), "choose from cpu, cuda"),
        (("--evidence", "hope"), "battery, opinfo, source, none"),
        (("--machine", "any"), "exact, integers, ours, composed, refused"),
    ],
)
def test_a_bad_filter_ends_the_process_with_2(words, said):
    """One line on standard error with the choices, nothing on standard output."""
    done = run(*words)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert said in done.stderr


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
def test_on_a_terminal_no_row_is_wider_than_it(columns):
    """The families fit; negative control: the wide terminal has rows that do not fit in 80 columns."""
    lines = on_terminal(columns)
    rows = [line for line in lines if " equal" in line and "raise" not in line]
    assert len(rows) >= 12 and max(map(len, rows)) <= columns
    assert columns == 80 or max(map(len, rows)) > 80
