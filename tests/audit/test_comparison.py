"""What `samebits diff` says of two records: equal only of two runs that reached their end and have steps in common."""

import itertools

import pytest
import torch

from samebits.audit._comparison import compare
from samebits.audit._record.record_file import RecordFile, read_record
from samebits.audit._record.recorder import Recorder, recording

FAILED, OTHER, KILLED = ValueError("no"), SystemExit(3), "killed"
numbers = itertools.count()


@pytest.fixture
def record(tmp_path):
    """The record of so many steps of a training that ended so."""

    def run(end=None, steps=3, level="state", scale=1.0):
        torch.manual_seed(0)
        recorder = Recorder(RecordFile(tmp_path / str(next(numbers))), level=level)
        with recording(recorder, "script.py", level=level, every=1, allowed=(tmp_path,)):
            model = torch.nn.Linear(4, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(steps):
                (model(torch.randn(8, 4)) * (scale if step == 2 else 1.0)).square().mean().backward()
                optimizer.step()
            if end != KILLED:
                recorder.finish(end)
        recorder.file.close()
        return read_record(recorder.file.path)

    return run


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ((None, None), 0, "equal: 3 steps compared"),
        ((FAILED, FAILED), 2, "ended with ValueError: no; "),
        ((FAILED, OTHER), 2, "no difference in the 3 steps compared"),
        ((KILLED, None), 2, "it was killed"),
        ((None, KILLED), 2, "it was killed"),
        ((KILLED, FAILED), 2, "it was killed"),
        ((FAILED, None), 1, "the record differs ("),
        ((None, OTHER), 1, "ended with SystemExit: 3)"),
    ],
)
def test_only_runs_that_ended_well_are_equal(record, ends, status, said):
    """Two that failed, or one that was killed: status 2, though their steps are equal; one that failed alone differs."""
    found = compare(*map(record, ends))
    assert (found.exit, said in found.sentence()) == (status, True), found.sentence()


@pytest.mark.parametrize("ends", [(None, None), (FAILED, FAILED), (KILLED, FAILED), (FAILED, None)])
def test_a_step_that_differs_is_a_difference_however_the_runs_ended(record, ends):
    """Status 1, the step, and how many were compared."""
    found = compare(record(ends[0]), record(ends[1], scale=1.01))
    assert found.exit == 1 and found.sentence().startswith("step 2 ")
    assert found.sentence().endswith("[3 steps compared]")


@pytest.mark.parametrize("ends", [(None, None), (KILLED, None), (FAILED, FAILED)])
def test_runs_without_a_step_in_common_are_not_equal(record, ends):
    """Nothing was compared: status 2."""
    found = compare(record(ends[0], steps=0), record(ends[1], steps=0))
    assert found.exit == 2 and "no step in common" in found.sentence()


@pytest.mark.parametrize("ends", [(None, None), (None, FAILED), (FAILED, None)])
def test_a_run_without_a_step_is_not_compared_with_one_that_has_some(record, ends):
    """A finished run that is started again records no step: status 2, and how many steps each has."""
    found = compare(record(ends[0]), record(ends[1], steps=0))
    assert found.exit == 2
    assert "no step in common (the first has 3, the second none" in found.sentence()


def test_where_a_failed_run_stops_is_no_difference_between_two_that_failed(record):
    """Two steps and three: status 2 where both failed; where both ended (control) the number of steps differs."""
    assert compare(record(FAILED, steps=2), record(FAILED)).exit == 2
    found = compare(record(steps=2), record())
    assert found.exit == 1 and "the numbers of steps differ (2 against 3)" in found.sentence()


def test_a_record_of_losses_says_so(record):
    """At level loss the sentence tells what was compared; at level state (control) it is everything."""
    assert (
        "3 steps compared (losses and learning rates)" in compare(record(), record(level="loss")).sentence()
    )
    assert "(losses" not in compare(record(), record()).sentence()
