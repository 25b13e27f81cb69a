"""What a PyTorch user types wrongly at a `Run`: each ends in an error that names the argument and the cure, before anything is lost."""

import inspect

import numpy as np
import pytest
import torch
from torch import nn

import samebits
from samebits.errors import IncompleteStateError, InvalidArgumentError, RunMismatchError

DATA = [torch.ones(2, 2) for _ in range(4)]


@pytest.fixture
def model():
    samebits.set_random_seed(1)
    return nn.Linear(2, 1)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"keep": "2"}, r"Run\(keep='2'\): an int"),
        ({"keep": None}, r"Run\(keep=None\): an int"),
        ({"grace": "20s"}, r"Run\(grace='20s'\): seconds"),
        ({"best": 0.5, "keep_best": 1}, r"Run\(best=0.5\): the name.*run.best"),
        ({"ignore": "losses"}, r"Run\(ignore='losses'\): a list"),
        ({"ignore": None}, r"Run\(ignore=None\): a list"),
        ({"allow_changes": None}, r"Run\(allow_changes=None\): a list"),
        ({"optimizer": torch.optim.SGD}, r"Run\(optimizer=SGD\): a class. Give the object"),
        ({"scheduler": None}, r"Run\(scheduler=None\): .* Leave it out"),
    ],
)
def test_an_option_of_another_kind_is_named(tmp_path, model, options, told):
    """A value of the wrong kind at Run(...) is refused with its argument, and no folder is made; the right kinds (control) pass."""
    with pytest.raises(InvalidArgumentError, match=told):
        samebits.Run(tmp_path / "r", model=model, **options)
    assert not (tmp_path / "r").exists()
    samebits.Run(
        tmp_path / "r",
        model=model,
        keep=1,
        grace=1,
        ignore=("a",),
        keep_best=1,
        best="x",
        allow_changes={"cpu"},
    )


def test_objects_without_names_are_answered_with_the_line_to_type(tmp_path, model, monkeypatch):
    """Run("d", model, opt) shows Run("d", model=model, opt=opt), by the user's variables; no folder is made. TypeError, too."""
    monkeypatch.chdir(tmp_path)
    opt = torch.optim.SGD(model.parameters(), 0.1)
    calls = [
        (lambda: samebits.Run("d", model, opt), r'Run\("d", model=model, opt=opt\)'),
        (lambda: samebits.Run(tmp_path / "d", model, keep=3), r'd", model=model, keep=3\)'),
        (lambda: samebits.Run("d", nn.Linear(1, 1)), r'Run\("d", model=nn.Linear\(1, 1\)\)'),
        (
            lambda: samebits.Run("d", torch.optim.SGD(model.parameters(), 1)),
            r'Run\("d", optimizer=torch.optim.SGD\(model',
        ),
        (lambda: samebits.Run(None, model), r"Run\(None, model=model\)"),
        (lambda: samebits.Run(model, opt), r'Run\("runs/name", model=model, opt=opt\)'),
        (
            lambda: samebits.Run(model=model),
            r'one folder, first. Type\n    samebits.Run\("runs/name", model=model\)',
        ),
    ]
    for call, told in calls:
        with pytest.raises(InvalidArgumentError, match=told) as caught:
            call()
        assert isinstance(caught.value, TypeError)
    assert not any(tmp_path.iterdir())
    samebits.Run("d", model=model, opt=opt)  # control
    assert [*inspect.signature(samebits.Run).parameters][:3] == ["run_dir", "save", "keep"]


def test_name_and_object_in_the_wrong_order_are_told(model):
    """run.add(model, "model") says which comes first; so does a loop whose name is no str."""
    run = samebits.Run(None)
    with pytest.raises(InvalidArgumentError, match=r"Run.add\(Linear, ...\): first the name"):
        run.add(model, "model")
    with run:
        for name in (3, None):
            with pytest.raises(InvalidArgumentError, match=r"Run.steps\(name=.*a name is a str"):
                run.steps(DATA, name=name)
        with pytest.raises(InvalidArgumentError, match=r"Run.validate\(name=3\)"):
            run.validate(DATA, name=3)


@pytest.mark.parametrize("value", [None, "0.3", torch.ones(3), np.ones(2), [1.0]])
def test_a_loss_that_is_no_number_is_named(model, value):
    """run.log(loss=...) and run.best(...) say what they take; numbers of every kind (control) pass."""
    with samebits.Run(None, model=model, keep_best=1, best="score") as run:
        with pytest.raises(InvalidArgumentError, match=r"run.log\(loss=.*number"):
            run.log(loss=value)
        with pytest.raises(InvalidArgumentError, match=r"run.log\(score=.*number"):
            run.log(score=value)
        with pytest.raises(InvalidArgumentError, match=r"run.best\(value=.*number"):
            run.best(value)
        for good in (1, 1.0, np.float32(1), np.ones(1)[0], torch.ones(()), torch.ones(1, 1)):
            run.log(loss=good, score=good, other=value)


def test_the_best_value_may_be_a_tensor(tmp_path, model):
    """run.best(tensor) decides as its number does, in the commit too."""
    with samebits.Run(tmp_path, model=model, keep=1, keep_best=1) as run:
        for step, _ in run.steps(DATA):
            run.best(torch.tensor(0.5 if step.number == 1 else 2.0))
    assert 0.5 in [listed.manifest.value for listed in samebits.checkpoint.list_commits(tmp_path)]


def test_a_run_that_has_ended_trains_no_step(tmp_path, model):
    """Behind the `with` block, loops old and new, validations and commits are refused at once; inside (control) they run."""
    with samebits.Run(tmp_path, model=model) as run:
        steps = run.steps(DATA)
        assert next(steps)[0].number == 0
    for call in (
        lambda: next(steps),
        lambda: run.steps(DATA, name="x"),
        lambda: run.validate(DATA),
        run.commit,
    ):
        with pytest.raises(InvalidArgumentError, match="with` block .* has ended"):
            call()


def test_run_state_is_filled_not_replaced(model):
    """run.state = {...} would never be saved, and is refused; what was there stays."""
    with samebits.Run(None, model=model) as run:
        run.state.best = 1
        with pytest.raises(InvalidArgumentError, match="run.state.update"):
            run.state = {"best": 2}
        assert run.state == {"best": 1}


class Keras(samebits.callbacks.Callback):
    """Keras's arguments: `trainer` is missing."""

    def on_epoch_end(self, epoch, logs=None):
        raise AssertionError("it was called")


class Variadic(samebits.callbacks.Callback):
    def on_epoch_end(self, *args):
        self.args = args


def test_a_hook_with_other_arguments_is_told_before_training(model):
    """Hooks with Keras's arguments are refused when the Trainer is made, not behind an epoch; what can be called (control) is."""
    optimizer, loss = torch.optim.SGD(model.parameters(), 0.1), nn.functional.mse_loss
    told = r"\[Keras\]\): its on_epoch_end takes \(epoch, logs=None\), and is called with \(trainer, epoch, logs\)"
    with pytest.raises(InvalidArgumentError, match=told):
        samebits.Trainer(model, loss, optimizer, callbacks=[Keras()])
    with pytest.raises(InvalidArgumentError, match="its on_epoch_end takes"):
        function = samebits.callbacks.Lambda(on_epoch_end=lambda epoch, logs: None)
        samebits.Trainer(model, loss, optimizer, callbacks=[function])
    with pytest.raises(InvalidArgumentError, match="give a list of callbacks"):
        samebits.Trainer(model, loss, optimizer, callbacks=None)
    good = Variadic()
    trainer = samebits.Trainer(model, loss, optimizer, callbacks=[good])
    trainer.fit([(torch.ones(2, 2), torch.ones(2, 1))], 1, verbose=0)
    assert len(good.args) == 3


def test_tensors_as_validation_data_are_told(model):
    """validation_data=(x, y), as in Keras, says how batches are made of it; a list of batches (control) is read."""
    trainer = samebits.Trainer(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1))
    x, y = torch.ones(2, 2), torch.ones(2, 1)
    with pytest.raises(InvalidArgumentError, match="TensorDataset"):
        trainer.fit([(x, y)], 1, validation_data=(x, y), verbose=0)
    assert "val_loss" in trainer.fit([(x, y)], 1, validation_data=[(x, y)], verbose=0).history


X = torch.ones(4, 2)
DATASET = torch.utils.data.TensorDataset(X, X)
NO_LOADERS = [
    (None, "not iterable"),
    (DATASET, "a dataset gives one sample at a time.*samebits.data.DataLoader"),
    (torch.utils.data.Subset(DATASET, [0]), "a dataset gives one sample"),
]
NO_BATCHES = [
    *NO_LOADERS,
    (X, "read as batches.*TensorDataset"),
    (X.numpy(), "read as batches"),
    ((X, X), "read as batches"),
    ({"x": X}, "a list of batches"),
    ("abc", "a list of batches"),
]


@pytest.mark.parametrize(("given", "told"), NO_BATCHES)
def test_samples_in_the_place_of_batches_are_told(tmp_path, model, given, told):
    """Samples were trained on one by one, rows of an array were predicted: each place of a loader says what it takes."""
    trainer = samebits.Trainer(model, nn.functional.mse_loss, torch.optim.SGD(model.parameters(), 0.1))
    calls = {
        r"Trainer.evaluate\(loader=": trainer.evaluate,
        r"Trainer.predict\(loader=": trainer.predict,
        r"fit\(loader=": lambda data: trainer.fit(data, verbose=0, run_dir=tmp_path / "r"),
    }
    with samebits.Run(None, model=model) as run:
        if told in dict(NO_LOADERS).values():
            calls |= {r"Run.steps\(loader=": run.steps, r"Run.validate\(loader=": run.validate}
        for named, call in calls.items():
            with pytest.raises(InvalidArgumentError, match=f"{named}.*{told}"):
                call(given)
    assert not (tmp_path / "r").exists()


def test_what_gives_batches_is_no_misuse(model):
    """The control of the refusals: lists, generators, what has __getitem__ alone, and a dataset in a loader are read."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = samebits.Trainer(model, nn.functional.mse_loss, optimizer)
    batches = [(X, X[:, :1])] * 2
    indexed = type("Indexed", (), {"__getitem__": lambda self, index: batches[index]})()
    pairs = torch.utils.data.TensorDataset(X, X[:, :1])
    for read in (batches, indexed, samebits.data.DataLoader(pairs, batch_size=4), iter(batches)):
        assert len(trainer.predict(read)) in (4, 8)
    assert trainer.evaluate(batch for batch in batches)["loss"] > 0
    with samebits.Run(None, model=model) as run:
        # the user knows what it is
        assert [float(row) for _, row in run.steps(torch.arange(3.0))] == [0, 1, 2]


def test_a_module_without_tensors_that_is_missing_on_a_resume_is_told(tmp_path):
    """A program without the Dropout of the commit: the resume says how many modules there were, and changes nothing."""

    def train(added, steps):
        samebits.set_random_seed(1)
        model = nn.Sequential(nn.Linear(2, 1))
        if added == "before":
            model.append(nn.Dropout())
        before = [value.clone() for value in model.parameters()]
        try:
            with samebits.Run(tmp_path / "r", model=model, save=1) as run:
                for step, _ in run.steps(DATA):
                    with torch.no_grad():
                        model[0].weight.add_(1)
                    if step.number == steps:
                        break
        except RunMismatchError:
            assert all(map(torch.equal, before, model.parameters()))
            raise

    train("before", 2)
    with pytest.raises(RunMismatchError, match=r"model had 3 modules, has 2 \(what is added must"):
        train("not at all", 9)
    train("before", 9)  # control: with it the commit fits


class Counting:
    """Counts in an attribute that its state_dict leaves out."""

    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return self.calls

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("complete", [True, False])
def test_an_object_that_is_complete_is_not_looked_into(tmp_path, model, complete):
    """run.add(..., complete=True) is believed; without it (control) what the state_dict leaves out stops the run."""
    counting = Counting()
    with samebits.Run(tmp_path / "r", model=model, save="explicit") as run:
        run.add("counting", counting, complete=complete)
        try:
            for _, x in run.steps(samebits.data.DataLoader(DATA, batch_size=None)):
                with torch.no_grad():
                    model.weight += counting() * x[:1]
        except IncompleteStateError as error:
            assert not complete and "counting.calls" in str(error)
        else:
            assert complete
