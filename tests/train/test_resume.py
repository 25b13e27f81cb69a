"""The line that a run prints when it resumes: true of the start that it stands in."""

import pytest

import samebits


@pytest.fixture
def start(tmp_path, capfd):
    """Starts a loop of 2 steps per epoch; returns the number of steps that ran, and the line that was printed first."""

    def run_epochs(epochs, stop=99):
        samebits.set_random_seed(1)
        ran = 0
        with samebits.Run(tmp_path / "r", save=1, ignore=["ran"]) as run:
            for step, _ in run.steps(samebits.data.DataLoader([1, 2], batch_size=1), epochs=epochs):
                ran += 1
                if step.number == stop:
                    break
        return ran, (capfd.readouterr().err.splitlines() or [""])[0]

    return run_epochs


def test_a_finished_run_that_continues_is_not_called_finished(start, tmp_path):
    """With more epochs the line says that such a loop continues, and it does; with as many, the same line is true, too."""
    line = (
        f"samebits: the run in {tmp_path / 'r'} had finished (2 steps): a loop that asks for more epochs continues, "
        "else only the code after the loops runs"
    )
    start(1)
    assert start(1) == (0, line)
    assert start(2) == (2, line)


def test_a_run_that_had_not_finished_says_where_it_resumes(start, tmp_path):
    """Negative control: after a `break` the line names step, epoch and batch, and nothing had finished."""
    start(2, stop=2)
    ran, line = start(2)
    assert ran == 2 and line == f"samebits: resumed {tmp_path / 'r'} at step 2 (epoch 1, batch 0)"
