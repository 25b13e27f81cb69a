"""State that each step overwrites before it reads it is let be; what is overwritten only sometimes is named."""

import pytest

import carried_state
import resets

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", resets.RESET)
def test_what_each_step_overwrites_first_is_let_be(name, tmp_path):
    """The script trains to its end: nothing is named."""
    _, text = carried_state.whole(*resets.RESET[name], tmp_path)
    assert carried_state.end(text) is not None, text


@pytest.mark.slow
@pytest.mark.parametrize("name", resets.RESET)
def test_a_resume_does_not_miss_what_each_step_overwrites(name, tmp_path):
    """Killed in step 10 and started again, each script that is let be ends with the same bits."""
    assert carried_state.verdict(*resets.RESET[name], tmp_path) == "equal"


@pytest.mark.first_case_quick
@pytest.mark.parametrize("name", resets.SOMETIMES)
def test_what_is_overwritten_only_sometimes_is_named(name, tmp_path):
    """Negative control: the same objects, overwritten in some steps, in part, or after they were read, are named."""
    _, text = carried_state.whole(*resets.SOMETIMES[name], tmp_path)
    assert carried_state.end(text) is None
    assert "IncompleteStateError" in text, text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("a file in memory, read first", "a BytesIO, a local variable"),
        ("an average in the collate function", 'samebits.state.attributes(loader, "collate_fn.buf")'),
    ],
)
def test_the_error_says_what_holds_the_state(name, says, tmp_path):
    """A file in memory is no iterator, though it has `__next__`; a collate function is neither dataset nor sampler."""
    _, text = carried_state.whole(*resets.SOMETIMES[name], tmp_path)
    assert says in text, text
