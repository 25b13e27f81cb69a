"""What a run does not put up with silently: a second thread's run, fewer epochs than it has made, a variable that changes hands."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest
import torch

import samebits
from samebits.errors import IncompleteStateError, InvalidArgumentError, RunMismatchError, UnsavableStateError
from samebits.train._object_checks import GivenForms


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


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x * self.scale + self.seen.sum()


def grow(net: Net) -> None:
    net.layers.append(torch.nn.Linear(3, 3))


def add_a_layer_without_weights(net: Net) -> None:
    net.layers.append(torch.nn.Tanh())


def take_away(net: Net) -> None:
    del net.layers[1]


def change_a_shape(net: Net) -> None:
    net.seen = torch.cat([net.seen, torch.ones(1)])


def add_a_buffer(net: Net) -> None:
    net.register_buffer("more", torch.ones(1), persistent=False)


def replace_a_parameter(net: Net) -> None:
    net.scale = torch.nn.Parameter(net.scale.detach() * 0.5)


CHANGES = {
    grow: r"net\.layers\.2\.bias was added after net had been given to the run.*before `with",
    add_a_layer_without_weights: r"a layer without weights was added or taken away",
    take_away: r"net\.layers\.1\.bias was taken away",
    change_a_shape: r"net\.seen was changed from shape \(1,\) to \(2,\)",
    add_a_buffer: r"net\.more was added",
    replace_a_parameter: r"net\.scale is another parameter.*net\.scale\.copy_",
}


def train_net(run_dir: Path, change, *, by_epoch: bool, kill: int = -1) -> None:
    samebits.set_random_seed(1)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loader = samebits.data.DataLoader(torch.randn(8, 3), batch_size=2, shuffle=True)

    def train_on(steps) -> None:
        for step, x in steps:
            if step.number == kill:
                raise KeyboardInterrupt
            if not by_epoch and step.number == 5:
                change(net)
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    with samebits.Run(run_dir, net=net, optimizer=optimizer, save=1) as run:
        if not by_epoch:
            train_on(run.steps(loader, epochs=3))
        for epoch in run.epochs(3) if by_epoch else ():
            if epoch == 1:
                change(net)
            train_on(epoch.steps(loader))


@pytest.mark.parametrize("by_epoch", [False, True])
@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_a_module_of_another_form_is_refused_at_the_commit(change, by_epoch: bool, tmp_path: Path) -> None:
    """Layers, buffers or parameters that a resumed program lacks: an error of the run itself, with the way out."""
    with pytest.raises(UnsavableStateError, match=CHANGES[change]):
        train_net(tmp_path / "run", change, by_epoch=by_epoch)


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
def test_no_resume_would_take_it(change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the check such a run commits, and each resume is refused."""
    monkeypatch.setattr(GivenForms, "check", lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        train_net(tmp_path / "run", change, by_epoch=False, kill=8)
    with pytest.raises(RunMismatchError):
        train_net(tmp_path / "run", change, by_epoch=False)


def rounds(run_dir: Path, kill: int = -1) -> list[torch.Tensor]:
    samebits.set_random_seed(1)
    net = Net()
    loader = samebits.data.DataLoader(torch.randn(8, 3), batch_size=2, shuffle=True)
    with samebits.Run(run_dir, save=1) as run:
        for number in range(3):
            if number:
                grow(net)
            optimizer = torch.optim.SGD(net.parameters(), 0.1)
            run.add("net", net)
            run.add(f"optimizer{number}", optimizer)
            for step, x in run.steps(loader, epochs=2, name=f"round{number}"):
                if step.number == kill:
                    raise KeyboardInterrupt
                optimizer.zero_grad()
                net(x).square().mean().backward()
                optimizer.step()
    return [one.detach() for one in net.parameters()]


def test_a_module_that_grows_between_loops_is_added_behind_the_change(tmp_path: Path) -> None:
    """What the error says of two loops: killed in each of three rounds, the weights are equal."""
    whole = rounds(tmp_path / "whole")
    for kill in (5, 12, 21):
        with pytest.raises(KeyboardInterrupt):
            rounds(tmp_path / "run", kill)
    assert all(map(torch.equal, rounds(tmp_path / "run"), whole))


def test_a_module_of_the_same_form_is_not(tmp_path: Path) -> None:
    """A fresh head and optimizer for each epoch, frozen layers and new groups stop no run, and resume with equal weights."""

    def heads(run_dir: Path, kill: int = -1) -> torch.Tensor:
        samebits.set_random_seed(1)
        net = Net()
        loader = samebits.data.DataLoader(torch.randn(8, 3), batch_size=2, shuffle=True)
        with samebits.Run(run_dir, net=net, save=1) as run:
            for epoch in run.epochs(3):
                net.layers[1] = torch.nn.Linear(3, 3)
                optimizer = torch.optim.SGD([net.scale, *net.layers[1].parameters()], 0.1)
                run.add("optimizer", optimizer)
                for step, x in epoch.steps(loader):
                    if step.number == kill:
                        raise KeyboardInterrupt
                    if step.batch_index == 2:
                        optimizer.add_param_group({"params": net.layers[0].parameters()})
                    optimizer.zero_grad()
                    net(x).square().mean().backward()
                    optimizer.step()
        return net.layers[0].weight.detach()

    whole = heads(tmp_path / "whole")
    for kill in (3, 7, 9):
        with pytest.raises(KeyboardInterrupt):
            heads(tmp_path / "run", kill)
    assert torch.equal(heads(tmp_path / "run"), whole)
