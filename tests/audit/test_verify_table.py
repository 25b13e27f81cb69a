"""The table of `samebits verify`: rows, what does not apply, notes, and the verdict as the last line."""

import dataclasses

import pytest

from samebits.arithmetic import BITS
from samebits.audit._first_difference import Difference
from samebits.audit._verify.baseline import _without_folders
from samebits.audit._verify.check_plan import KILL_ROWS, MID_EPOCH, Check, ProcessVariation
from samebits.audit._verify.check_process import Request
from samebits.audit._verify.verify_report import CheckRow, Circumstances, VerifyReport, cure_of
from samebits.audit._verify.verify_table import PLAIN_WIDTH, show

NO_RUN, NO_LOADER = "the script does not use samebits.Run", "the script makes no torch or samebits loader"
AGAIN = Check(
    "run-again", "run again", "hash seed, TMPDIR, the folder's path, order of directory listings, speed"
)
IDLE = [
    *(Check("kill", row.title, does_not_apply=NO_RUN, option=row.option) for row in KILL_ROWS),
    *(Check("workers", f"{number} loader workers", does_not_apply=NO_LOADER) for number in (0, 1, 3)),
]
THREADS = [
    Check(
        "threads",
        f"{number} threads",
        "intra-op threads",
        (ProcessVariation(threads=number),),
        promised=False,
    )
    for number in (1, 3)
]


def printed(capsys, *rows, notes=()):
    """(report, the lines that `show` prints into a pipe)."""
    report = VerifyReport(Request("train.py", seed=3), "xxh3-128:0", {}, rows, notes)
    show(report)
    return report, capsys.readouterr().out.splitlines()


def cells(lines):
    return [line for line in lines if line.startswith("|")]


def test_rows_that_do_not_apply_are_one_line_below(capsys):
    """Six rows are one line with a reason for each kind; with rows that apply, no such line (control)."""
    rows = [CheckRow(AGAIN, 8), *map(CheckRow, IDLE)]
    report, lines = printed(capsys, *rows)
    below = f"does not apply: killed and resumed ({NO_RUN}), loader workers ({NO_LOADER})"
    assert [line for line in lines if "does not apply" in line] == [below]
    assert not any(name in "".join(cells(lines)) for name in (*(row.title for row in KILL_ROWS), "loader"))
    # JSON has all
    assert [row["check"] for row in report.to_dict()["rows"]] == [row.check.name for row in rows]
    _, lines = printed(capsys, CheckRow(AGAIN, 8))
    assert not any("does not apply" in line for line in lines)


def test_a_note_stands_once_below_the_table(capsys):
    """It names its rows and is in no cell; promised rows have none (control)."""
    _, lines = printed(capsys, CheckRow(AGAIN, 8), *(CheckRow(check, 8) for check in THREADS))
    assert [line for line in lines if "measured" in line][
        0
    ] == "note: 1 threads, 3 threads: measured, not promised"
    assert "measured" not in "".join(cells(lines))
    _, lines = printed(capsys, CheckRow(AGAIN, 8), notes=("a note of the first run",))
    assert [line for line in lines if line.startswith("note: ")] == ["note: a note of the first run"]


def test_the_verdict_is_the_last_line(capsys):
    """Whole and in one line in a pipe, as the report has it, whether all rows are equal or one is not."""
    for row in (CheckRow(AGAIN, 8), CheckRow(AGAIN, 8, Difference(3, "loss", ()))):
        report, lines = printed(capsys, row, *map(CheckRow, IDLE))
        assert lines[-1] == report.verdict() and lines[-2] == "final model digest: xxh3-128:0"


def test_the_digest_has_the_version_of_the_bits_across_threads_and_machines(capsys):
    """There the bits are those of `samebits.arithmetic`; in a run with torch's own kernels nothing is said of it."""
    for across, words in (("machines", f" (samebits.arithmetic.BITS = {BITS})"), ("runs", "")):
        report, _ = printed(capsys, CheckRow(AGAIN, 8))
        show(dataclasses.replace(report, environment={"op_determinism": {"enabled": True, "across": across}}))
        assert f"final model digest: {report.final}{words}\n" in capsys.readouterr().out


def test_not_proven_keeps_the_order_of_the_table(capsys):
    """Kinds that do not apply and that are only measured stand in one list, as before."""
    rows = [CheckRow(AGAIN, 8), *map(CheckRow, IDLE), *(CheckRow(check, 8) for check in THREADS)]
    report, _ = printed(capsys, *rows)
    assert report.verdict() == (
        f"REPRODUCED: the same bits in all 8 steps, run again. Not proven: killed and resumed ({NO_RUN}); "
        f"loader workers ({NO_LOADER}); number of threads (measured, not promised)."
    )


@pytest.mark.parametrize("paths", [(), ("layers.0.attention.query.weight",)])
def test_a_pipe_gets_100_columns(capsys, paths):
    """A long difference wraps in its cell and is there whole."""
    row = CheckRow(AGAIN, 8, Difference(110, "optimizer", paths))
    _, lines = printed(capsys, row)
    assert {len(line) for line in cells(lines)} == {PLAIN_WIDTH}
    text = "".join("".join(line.split("|")[-2].split()) for line in cells(lines))
    assert "".join(row.result().split()) in text


def test_the_verdict_says_what_was_left_out_and_cut_short():
    """`--checks` and `--steps` stand in the verdict and in the JSON; without them neither does (control)."""
    rows = (CheckRow(AGAIN, 8),)
    report = VerifyReport(
        Request("train.py", seed=3, groups=("run-again", "kill-twice"), steps=8), "xxh3-128:0", {}, rows
    )
    assert report.verdict() == (
        "REPRODUCED: the same bits in all 8 steps of a short run (--steps 8), run again. Not proven: loader workers (left "
        "out by --checks); number of threads (left out by --checks)."
    )
    options = {"steps": 8, "checks": ["run-again", "kill-twice"], "nproc_per_node": None, "world_sizes": []}
    assert report.to_dict()["options"] == {**options, "require": [], "within": None}
    whole = VerifyReport(Request("train.py", seed=3), "xxh3-128:0", {}, rows)
    assert whole.verdict() == "REPRODUCED: the same bits in all 8 steps, run again."


def test_a_required_check_that_is_not_proven_fails_the_verdict():
    """`--require`: a group that applies and is equal satisfies it; one that does not apply, was left out, or is only measured does not."""
    kill = Check("kill", MID_EPOCH.title, processes=(ProcessVariation(),), option=MID_EPOCH.option)
    idle = Check("workers", "0 loader workers", does_not_apply="the script makes no loader")
    measured = Check("threads", "1 thread", promised=False)
    rows = (CheckRow(AGAIN, 8), CheckRow(kill, 8), CheckRow(idle), CheckRow(measured, 8))
    late = Check("cpu", "a CPU with AVX2")

    def of(*required):
        return VerifyReport(
            Request("train.py", seed=3, require=required, within=30), "xxh3-128:0", {}, rows, left_out=(late,)
        )

    assert (of().exit, of("kill", "run-again").exit, of("kill-mid-epoch").exit) == (0, 0, 0)
    assert of("kill", "workers", "threads", "cpu", "kill-twice").verdict() == (
        "NOT VERIFIED: required, and not proven: workers (the script makes no loader); threads (measured, not promised); cpu "
        "(left out by --within 30); kill-twice (not among the checks)."
    )
    assert of("workers").exit == of("kill-twice").exit == 2
    assert of("workers").to_dict()["not_run"] == {
        "0 loader workers": "the script makes no loader", "a CPU with AVX2": "left out by --within 30"
    }  # fmt: skip
    assert "CPU (left out by --within 30)" in of().verdict()


def test_a_note_that_differs_by_its_path_alone_is_told_once():
    """A path in a note may be another one in each check: the same note is not told again (control: another note is)."""
    told = "benchmark = True at /home/a b/train.py:9 is not followed"
    assert _without_folders(told) == _without_folders(told.replace("/home/a b", "/tmp/x/layer of root of y"))
    assert _without_folders(told) != _without_folders(told.replace(":9", ":8"))


KILL = Check("kill", "killed")
ADAPTER = "Here there is no run.state, and Run(ignore=[...]) is Resumable(ignore=[...])."


@pytest.mark.parametrize(
    ("component", "path", "seen", "said"),
    [
        ("state", "callbacks[0].best", Circumstances(), "take it back in load_state_dict"),
        ("locals", "sched.last_epoch", Circumstances(), 'run.add("sched", samebits.state.attributes(sched))'),
        (
            "locals",
            "opt.masters",
            Circumstances(given=frozenset({"opt"})),
            "its state_dict leaves opt.masters out",
        ),
        ("locals", "ema.n", Circumstances(unsaved={"ema.n": "the line"}), "the line."),
        ("locals", "ema.n", Circumstances(unsaved={"a.n": "no", "ema.n": "the line"}), "error: the line."),
        ("locals", "data.n", Circumstances(unsaved={"loader.dataset.n": "the line"}), "the line."),
        ("locals", "data.n", Circumstances(unsaved={"ema.k": "the line"}), 'run.add("data"'),
        ("loss", "", Circumstances(unsaved={"cur": "the line"}), "it is an error: the line."),
        ("locals", "best", Circumstances(), "run.state.NAME"),
        ("locals", "loader.dataset.count", Circumstances(), "compute it from the index"),
        *(
            (name, "callback_A._model.x", Circumstances(adapter=ADAPTER), ADAPTER)
            for name in ("locals", "loss")
        ),
    ],
)
def test_the_cure_of_a_lost_value_can_be_typed(component, path, seen, said):
    """By what is known of it: a callback's, an object that was given or not, the run's own finding, an adapter's program."""
    found = cure_of(KILL, Difference(1, component, (path,) if path else ()), seen)
    assert said in found and found.endswith(".") and not found.endswith(".."), found
    assert not (seen.adapter and "samebits.Run" in found)


@pytest.mark.parametrize("component", ["generators", "model", "loss"])
@pytest.mark.parametrize(
    ("seen", "fresh"),
    [
        (Circumstances(), True),
        (Circumstances(as_run=True), False),
        (Circumstances(seeded=True, switched=True), False),
    ],
)
def test_seeds_and_the_switch_are_advised_only_where_they_are_missing(component, seen, fresh):
    """Under `--run`, and in a script that sets seed and switch, no cure says to do so; in another it does (control)."""
    found = cure_of(AGAIN, Difference(-1, component, (), place="start"), seen)
    assert found and ("set_random_seed" in found or "`--run`" in found) == fresh, found


def test_an_error_is_one_line_in_the_table_and_whole_in_the_verdict(capsys):
    """A row whose process raised: the lines to paste are in the verdict and in the JSON, not in the cell."""
    error = "a process raised: ResumeMismatchError: ema differs\nTo save it:\n    run.add('ema', ema)"
    report, lines = printed(capsys, CheckRow(AGAIN, 8), CheckRow(KILL, 8, failed=error))
    assert report.verdict() == f"NOT REPRODUCIBLE: killed: {error}."
    assert "run.add" not in "".join(cells(lines)) and "ResumeMismatchError" in "".join(cells(lines))
    assert error in report.to_dict()["rows"][1]["note"]
