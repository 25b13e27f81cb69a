"""tools/op_table reviews a torch; one that nobody reviewed fails here, with the overloads that are new, gone or changed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import samebits
import schema_samples
from composite_calls import calls_of
from in_a_process import in_a_process
from overload_replay import LARGE, Replay
from running_torch import live_overloads, unreviewed
from samebits.determinism import table
from samebits.determinism.table._overload_facts import (
    FILES,
    ReviewedOverloads,
    all_reviews,
    read,
    read_others,
)
from swept_kernels import FOLDERS, PYTHON, changed_since, kernel_digests, swept_kernels
from table_files import write, write_others
from update import update_snapshot

HOW = "review them: python tools/op_table/update.py (CONTRIBUTING.md)"


@pytest.fixture(scope="module")
def live():
    return live_overloads()


def test_this_torch_was_reviewed(live):
    """The version, and every overload's schema and tags, are those of a review; another torch is told what is unlike."""
    assert table.reviewed().torch == torch.__version__.split("+")[0], HOW
    assert list(unreviewed(table.reviewed(), live)) == [], HOW


def test_a_new_a_gone_and_a_changed_overload_are_reported_by_name(live):
    """Negative control: a snapshot with one overload removed, one added, one schema and one tag changed."""
    rows = dict(table.reviewed().rows)
    del rows["mm"]
    rows["magic"] = replace(rows["bmm"], name="magic")
    rows["sum"] = replace(rows["sum"], schema="0" * 12)
    rows["exp"] = replace(rows["exp"], traits=())
    assert list(unreviewed(ReviewedOverloads("2.13.0", rows), live)) == [
        "tags changed: aten::exp:  then, pointwise now",
        "gone: aten::magic",
        "new: aten::mm",
        "schema changed: aten::sum",
    ]


def test_updating_the_snapshot_with_the_reviewed_torch_changes_nothing(live):
    """Everything torch says of an overload, its kernels included, is as recorded; what was measured is kept."""
    if torch.version.cuda is None:
        assert update_snapshot(table.reviewed(), live) == table.reviewed()


def test_what_was_measured_of_a_changed_overload_is_dropped(live):
    """Evidence belongs to a schema; negative control: that of an unchanged one stays."""
    measured = {
        "source": "battery",
        "runs": "equal",
        "threads": "equal",
        "kernel": "torch",
        "tested": "2.12.0",
    }
    rows = {name: replace(table.reviewed().rows[name], **measured) for name in ("mm", "bmm")}
    rows["mm"] = replace(rows["mm"], schema="0" * 12)
    after = update_snapshot(ReviewedOverloads("2.12.0", rows), live).rows
    assert (after["mm"].runs, after["bmm"].runs, after["bmm"].tested) == ("", "equal", "2.12.0")


def test_evidence_is_merged_from_files(live):
    """What varies in one of several files varies; a new battery replaces an older one, torch's samples do not."""

    def file(source, **found):
        return {"torch": "2.13.0+cpu", "overloads": {"aten::exp": {"source": source, **found}}}

    good, bad = {"runs": "equal", "threads": "equal"}, {"runs": "equal", "threads": "varies"}
    both = update_snapshot(table.reviewed(), live, [file("opinfo", **bad), file("battery", **good)])
    exp = both.rows["exp"]
    assert (exp.source, exp.runs, exp.threads, exp.tested) == ("battery", "equal", "varies", "2.13.0")
    again = update_snapshot(
        both,
        live,
        [
            file("battery", **good),
            {"torch": "2.13.0", "overloads": {}, "calls": {"aten::matmul": ["aten::dot"]}},
        ],
    )
    assert (again.rows["exp"].source, again.rows["exp"].threads) == ("battery", "equal")
    assert update_snapshot(both, live, [file("opinfo", **good)]).rows["exp"] == exp
    assert "dot" in again.rows["matmul"].calls and again.rows["cos"] == both.rows["cos"]


def test_a_snapshot_is_read_as_it_was_written(tmp_path):
    """Writing and reading give the same rows, and the committed files are as `write` and `write_others` leave them."""
    pinned, *others = all_reviews().values()
    write(pinned, tmp_path / "snapshot.csv")
    assert read(tmp_path / "snapshot.csv") == pinned
    write_others(others, tmp_path / "versions.csv", pinned)
    assert read_others(tmp_path / "versions.csv", pinned) == {one.torch: one for one in others}
    for file in FILES:
        assert (tmp_path / file.name).read_bytes() == file.read_bytes()


@pytest.mark.slow
def test_the_command_writes_the_files_as_they_are(root, tmp_path):
    """`python tools/op_table/update.py`, with the pinned torch, leaves each file of a copy of the package byte for byte."""
    if table.reviewed().torch != next(iter(all_reviews())) or torch.version.cuda is not None:
        pytest.skip("the files are of the pinned torch, built for the CPU")
    shutil.copytree(root / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    folder = "src/samebits/determinism/table"
    removed = tmp_path / folder / "seen.csv"
    # control: the command does write
    removed.write_text(removed.read_text() + "no_such_op,tails: no_such_op\n")
    done = subprocess.run(
        [sys.executable, root / "tools" / "op_table" / "update.py"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "src")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0 and done.stdout.startswith(f"torch {table.reviewed().torch}: "), done.stderr
    for file in (root / folder).glob("*.csv"):
        assert (tmp_path / folder / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_composite_is_known_by_what_it_calls():
    """The profiler names the kernels below a composite; an op that is a kernel itself has no entry."""
    x = torch.ones(3, 4)
    found = calls_of(lambda: (torch.matmul(x, x.T), torch.mm(x, x.T)))
    assert "mm" in found["matmul"] and "mm" not in found


def test_an_overload_that_varies_over_threads_is_replayed_and_noted():
    """A long float sum by torch's kernel differs over threads; the maximum, also long, is equal, and the empty one is not replayed."""
    x = torch.randn(1, 64)
    threads = torch.get_num_threads()
    try:
        with Replay() as replay:
            x.sum(-1), x.amax(-1), torch.empty(3)
    finally:
        torch.set_num_threads(threads)
    assert LARGE > 3 * 32_768
    over = {name: {over for _, over in outcomes} for name, outcomes in replay.found.items()}
    assert False in over["aten::sum.dim_IntList"] and over["aten::amax"] == {True, None}
    assert not any(name.startswith("aten::empty") for name in replay.found)


@pytest.mark.slow
def test_arguments_are_drawn_for_an_overload_that_no_opinfo_calls():
    """A composite's calls, a kernel's repeat, and a private op that reads metadata alone are found; `_backward` has no call."""
    found = schema_samples.evidence(
        ["subtract_.Scalar", "_fused_dropout", "is_signed", "square.out", "_int_mm"]
    )
    assert found.calls["square.out"] == {"pow.Tensor_Scalar_out"} and found.calls["is_signed"] == set()
    assert "sub_.Scalar" in found.calls["subtract_.Scalar"]
    assert found.overloads["aten::_int_mm"] and all(runs for runs, _ in found.overloads["aten::_int_mm"])
    assert found.without == ["_fused_dropout"]  # it has no kernel on the CPU


def test_a_call_that_crashes_or_hangs_costs_itself():
    """The process of a call ends by a signal, or in time: None; negative control: a result comes back."""
    assert in_a_process(lambda: os.kill(os.getpid(), signal.SIGKILL), 20.0) is None
    assert in_a_process(lambda: time.sleep(60), 0.5) is None
    assert in_a_process(lambda: {"equal": True}, 20.0) == {"equal": True}


@pytest.mark.slow
@pytest.mark.parametrize("switch, failures", [(True, 0), (False, 1)])
def test_samples_are_repeated_with_other_memory_and_with_values_that_are_no_numbers(root, switch, failures):
    """The gradient of `grid_sample` in bfloat16 has one result in 20 runs under the switch; control: it varies without."""
    program = "import sys, repeat_samples as r\n" + "r.enable_op_determinism = lambda: None\n" * (not switch)
    done = subprocess.run(
        [sys.executable, "-c", f"{program}sys.exit(r.main('grid_sampler_2d'))"],
        cwd=root, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == failures and f"cases, {failures} ops failed" in done.stdout, done.stdout


@pytest.mark.skipif(
    swept_kernels()["python"] != PYTHON, reason="the sweep ran with another Python's syntax trees"
)
def test_the_sweep_has_measured_the_kernels_that_run_now():
    """No kernel's code changed since the last sweep; else repeat it: CONTRIBUTING.md, "The op table", has the commands."""
    changed = changed_since(swept_kernels(), kernel_digests())
    assert not changed, (
        "python tools/op_table/sweep.py sweep.json && python tools/op_table/update.py sweep.json"
    )


def test_another_kernel_is_named_and_another_comment_is_not(tmp_path):
    """Negative control: one constant more in a kernel's file, or a new file, is named; other words in comments are not."""
    package = Path(samebits.__file__).parent
    for folder in FOLDERS:
        shutil.copytree(package / folder, tmp_path / folder)
    before = kernel_digests(tmp_path)
    file = tmp_path / "arithmetic/softmax/rows.py"
    text = file.read_text()
    file.write_text(text.replace('"""', '"""Other words. ', 1) + "\n# A comment.\n")
    assert not changed_since(before, kernel_digests(tmp_path))
    file.write_text(text + "\nONE = 1\n")
    (tmp_path / "arithmetic/new.py").write_text("TWO = 2\n")
    assert changed_since(before, kernel_digests(tmp_path)) == [
        "arithmetic/new.py",
        "arithmetic/softmax/rows.py",
    ]


def test_few_overloads_are_without_evidence():
    """At most 150 overloads on the CPU have the evidence "none"."""
    assert sum(one.evidence == "none" for one in table.entries() if one.device == "cpu") <= 150
