"""Ways to carry state past a commit: which of them `Run` names."""

import pytest

import carried_state

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", sorted(carried_state.WAYS.keys() - carried_state.NOT_SEEN))
def test_state_that_a_resume_would_lose_is_named(name, tmp_path):
    """A loop that keeps its state here, or changes itself in step 5, ends with an error that names it and the cure."""
    _, text = carried_state.whole(*carried_state.WAYS[name], tmp_path)
    assert carried_state.end(text) is None
    assert "IncompleteStateError" in text, text
    assert "resumed" in text


@pytest.mark.parametrize("name", sorted(carried_state.NOT_SEEN))
def test_state_that_is_documented_as_not_seen_is_not_seen(name, tmp_path):
    """Negative control, and the truth of docs/explanation/limits.md: nothing is raised for these, which no look can read."""
    _, text = carried_state.whole(*carried_state.WAYS[name], tmp_path)
    assert carried_state.end(text) is not None, text


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", carried_state.ORDINARY)
def test_an_ordinary_script_is_let_be(name, tmp_path):
    """Caches of constants, logs, timers, annealed dropout, buffers that each step fills: no alarm."""
    _, text = carried_state.whole(*carried_state.ORDINARY[name], tmp_path)
    assert carried_state.end(text) is not None, text


def test_there_are_fifty_ways_and_at_least_forty_five_are_named():
    """The list is as long as the documentation says."""
    assert len(carried_state.WAYS) == 50
    assert len(carried_state.NOT_SEEN) <= 5
    assert len(carried_state.ORDINARY) >= 20


def test_a_printed_meter_that_sets_the_loss_is_named(tmp_path):
    """The imagenet example's meter, in its list of meters, stops a run (it is only warned of otherwise) once the loss reads it."""
    inside = "losses.update(3 + step.number); n = losses.avg; progress.display(1)"
    _, text = carried_state.whole(carried_state.METERS, inside, tmp_path)
    assert "IncompleteStateError" in text and "losses.sum" in text, text
