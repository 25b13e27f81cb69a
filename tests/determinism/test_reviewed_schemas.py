"""A torch that nobody reviewed fails here, with the names of the overloads that are new, gone or changed."""

from dataclasses import replace

import pytest
import torch

from samebits.determinism import table
from samebits.determinism._environment import TESTED_TORCH
from samebits.determinism.table._running_torch import live_overloads, unreviewed
from samebits.determinism.table._overload_facts import ReviewedOverloads, all_reviews, version_numbers
from samebits.determinism.table.update import update_snapshot

HOW = "review them: python -m samebits.determinism.table.update (CONTRIBUTING.md)"


@pytest.fixture(scope="module")
def live():
    return live_overloads()


def test_this_torch_was_reviewed(live):
    """The version, and every overload's schema and tags, are those of a review; another torch is told what is unlike."""
    assert table.reviewed().torch == torch.__version__.split("+")[0], HOW
    assert list(unreviewed(table.reviewed(), live)) == [], HOW


def test_the_tested_versions_of_torch_name_the_reviewed_one():
    """What samebits calls tested is what the op table was reviewed with, from the oldest to the newest."""
    assert list(TESTED_TORCH) == sorted(all_reviews(), key=version_numbers)


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
    """What varies in one of several files varies; a new file replaces older evidence, and leaves other overloads alone."""

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
            file("opinfo", **good),
            {"torch": "2.13.0", "overloads": {}, "calls": {"aten::matmul": ["aten::dot"]}},
        ],
    )
    assert (again.rows["exp"].source, again.rows["exp"].threads) == ("opinfo", "equal")
    assert "dot" in again.rows["matmul"].calls and again.rows["cos"] == both.rows["cos"]
