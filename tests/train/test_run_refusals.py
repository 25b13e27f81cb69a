"""What a run does not put up with silently: a second thread's run, fewer epochs than it has made, a variable that changes hands."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest
import torch

import samebits
from samebits.errors import IncompleteStateError, InvalidArgumentError


def train(run_dir: Path | None, epochs: int = 1, body=lambda step: None) -> torch.Tensor:
    samebits.set_random_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = samebits.data.DataLoader(torch.randn(8, 3), batch_size=2, shuffle=True)
    with samebits.Run(run_dir, model=model, optimizer=optimizer, ignore=["body"]) as run:
        for step, x in run.steps(loader, epochs=epochs):
            body(step)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return model.weight.detach()


def test_a_second_run_in_another_thread_is_refused(tmp_path: Path) -> None:
    """Two threads would share the process's generators: the second run is refused, the first one goes on to its bits."""
    told: list[str] = []

    def second() -> None:
        try:
            train(tmp_path / "second")
        except InvalidArgumentError as error:
            told.append(str(error))

    def body(step: samebits.train._loop.steps.Step) -> None:
        if step.number == 2:
            thread = threading.Thread(target=second)
            thread.start()
            thread.join()

    got = train(tmp_path / "first", body=body)
    assert len(told) == 1 and "open in another thread" in told[0]
    assert torch.equal(got, train(tmp_path / "alone"))
    second()  # one after the other is fine
    assert len(told) == 1


def test_fewer_epochs_than_there_are_is_told(tmp_path: Path) -> None:
    """A run that has made three epochs and is asked for two says that its weights are not those of two."""
    whole = train(tmp_path / "r", epochs=3)
    with pytest.warns(UserWarning, match=r"epochs=2\): the run in .* is in epoch 3 already"):
        assert torch.equal(train(tmp_path / "r", epochs=2), whole)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(tmp_path / "r", epochs=3)


def test_fewer_epochs_in_the_middle_of_one_is_told(tmp_path: Path) -> None:
    """The same where the run was left in its third epoch."""

    def leave(step: samebits.train._loop.steps.Step) -> None:
        if step.number == 10:
            raise KeyError

    with pytest.raises(KeyError):
        with samebits.Run(tmp_path / "r", save=1) as run:
            for step, _ in run.steps([1, 2, 3, 4], epochs=3):
                leave(step)
    with pytest.warns(UserWarning, match="in epoch 2 already"):
        with samebits.Run(tmp_path / "r") as run:
            assert list(run.steps([1, 2, 3, 4], epochs=2)) == []


def test_a_variable_that_comes_to_hold_another_object_is_told(tmp_path: Path) -> None:
    """An optimizer that the loop replaces by another one would be the first one again after a resume: an error with its name."""
    samebits.set_random_seed(1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters())
    with samebits.Run(tmp_path / "r", model=model, optimizer=optimizer) as run:
        with pytest.raises(IncompleteStateError, match="optimizer"):
            for step, x in run.steps(samebits.data.DataLoader(torch.randn(8, 3), batch_size=2)):
                if step.number == 1:
                    optimizer = torch.optim.SGD(model.parameters(), 0.1)
                optimizer.zero_grad()
                model(x).square().mean().backward()
                optimizer.step()


def test_a_loader_without_an_end_needs_a_number_of_steps(tmp_path: Path) -> None:
    """run.steps and epoch.steps refuse an endless pipeline, also inside a torch loader, at once; with steps_per_epoch it runs."""
    samebits.set_random_seed(1)
    ever = samebits.data.Pipeline.range(9).repeat().shuffle(8).batch(4)
    inside = torch.utils.data.DataLoader(ever.as_iterable_dataset(), batch_size=None)
    with samebits.Run(None, model=torch.nn.Linear(1, 1)) as run:
        for loader in (ever, inside):
            with pytest.raises(
                InvalidArgumentError, match=r"Run.steps\(steps_per_epoch=None\).*does not end"
            ):
                run.steps(loader, epochs=2)
        assert len(list(run.steps(ever, epochs=2, steps_per_epoch=5))) == 10
    with samebits.Run(None, model=torch.nn.Linear(1, 1)) as run:
        for epoch in run.epochs(2):
            with pytest.raises(
                InvalidArgumentError, match=r"Epoch.steps\(steps_per_epoch=None\).*does not end"
            ):
                epoch.steps(ever)
            assert len(list(epoch.steps(ever, steps_per_epoch=3))) == 3
