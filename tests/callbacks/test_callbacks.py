"""The callbacks' own rules; those that are Keras's are tested against recorded facts in test_callbacks_keras.py."""

import io
import math
import re

import pytest
import torch
from torch import nn

import samebits
from samebits.callbacks import (
    Callback,
    CSVLogger,
    EarlyStopping,
    Lambda,
    LearningRateScheduler,
    ModelCheckpoint,
    ProgressBar,
    ReduceLROnPlateau,
    TensorBoard,
    TerminateOnNaN,
)
from samebits.errors import InvalidArgumentError, NonFiniteLossError

SGD = torch.optim.SGD([torch.zeros(1)], 0.1)


class View:
    """What a callback sees of a trainer."""

    def __init__(self):
        self.model = self.eval_model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1.0)
        self.epochs, self.steps_per_epoch = 10, 2
        self.run_dir, self.resumed, self.validates, self.stop_training = None, False, True, False
        self.initial_epoch = 0


def feed(callback, values, name="val_loss", view=None):
    """Gives one value per epoch; returns the epoch after which training was to stop."""
    view = view or View()
    for epoch, value in enumerate(values):
        with torch.no_grad():
            view.model.weight.fill_(epoch)
        callback.on_epoch_end(view, epoch, {name: value})
        if view.stop_training:
            return epoch
    return None


def fit(*callbacks, epochs=3, run_dir=None, factor=1.0, validate=True, **options):
    """A small training in this process."""
    samebits.set_random_seed(3)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    x = torch.arange(16.0).reshape(8, 2) / 16
    loader = samebits.data.DataLoader(torch.utils.data.TensorDataset(x, (x[:, 0] > 0.4).long()), batch_size=4)
    trainer = samebits.Trainer(
        model, lambda out, y: nn.functional.cross_entropy(out, y) * factor, optimizer, callbacks=callbacks
    )
    validation = loader if validate else None
    history = trainer.fit(
        loader, epochs, validation_data=validation, run_dir=run_dir, verbose=False, **options
    )
    return history, trainer


def test_early_stopping_restores_the_best_weights():
    """After training the model has the weights of the best epoch, or the last ones when that is switched off."""
    for restore, expected in ((True, 1.0), (False, 3.0)):
        view, callback = View(), EarlyStopping(patience=2, restore_best_weights=restore)
        feed(callback, [1.0, 0.5, 0.7, 0.6], view=view)
        callback.on_train_end(view)
        assert view.model.weight.item() == expected


def test_state_carries_over():
    """A new callback with the old one's state stops at the same epoch; without the state it does not."""
    values = [1.0, 0.5, 0.7, 0.6, 0.65, 0.66]
    first = EarlyStopping(patience=3)
    feed(first, values[:3])
    second, blank = EarlyStopping(patience=3), EarlyStopping(patience=3)
    second.load_state_dict(first.state_dict())
    assert feed(second, values[3:]) == 1
    assert feed(blank, values[3:]) != 1


@pytest.mark.parametrize(
    "make",
    [lambda view: EarlyStopping(patience=1), lambda view: ReduceLROnPlateau(view.optimizer, patience=1)],
)
def test_a_new_training_starts_afresh(make):
    """As in Keras a callback that is used for a second training forgets the first; one that is resumed does not."""
    view = View()
    callback = make(view)
    callback.on_train_begin(view)
    feed(callback, [1.0, 0.5], view=view)
    view.resumed = True
    callback.on_train_begin(view)
    assert callback.best == 0.5
    view.resumed = False
    callback.on_train_begin(view)
    assert callback.best is None


def test_every_param_group_gets_its_own_rate():
    """Plateau and schedule treat each group by itself, and fill a rate that is a tensor in place."""
    rate = torch.tensor(0.5)
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": lr} for lr in (1.0, 0.25, rate)]
    view = View()
    view.optimizer = torch.optim.Adam(groups, capturable=True)
    feed(ReduceLROnPlateau(view.optimizer, patience=1, factor=0.5, min_lr=0.25), [1.0, 1.0])
    assert [float(group["lr"]) for group in view.optimizer.param_groups] == [0.5, 0.25, 0.25]
    LearningRateScheduler(lambda epoch, lr: lr * epoch).on_epoch_begin(view, 2)
    assert [float(group["lr"]) for group in view.optimizer.param_groups] == [1.0, 0.5, 0.5]
    assert view.optimizer.param_groups[2]["lr"] is rate


def test_a_schedule_sets_the_rate_before_the_epoch():
    """LearningRateScheduler's rate is in force from the epoch's first step, and is in the history."""
    seen = []
    watch = Lambda(
        on_batch_end=lambda trainer, step, logs: seen.append(trainer.optimizer.param_groups[0]["lr"])
    )
    history, _ = fit(LearningRateScheduler(lambda epoch: 0.5**epoch), watch)
    assert history.history["learning_rate"] == [1.0, 0.5, 0.25]
    assert seen == [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]


def test_a_missing_metric_is_named():
    """A monitored name that no epoch will have is an error that lists the metrics and says what to do."""
    with pytest.raises(
        InvalidArgumentError, match=r"monitor='val_loss'.*metrics are loss. Pass validation_data"
    ):
        fit(EarlyStopping(), validate=False)
    with pytest.raises(InvalidArgumentError, match=r"monitor='val_acc'.*metrics are loss, val_loss. Choose"):
        fit(EarlyStopping("val_acc"))
    with pytest.raises(InvalidArgumentError, match=r"ModelCheckpoint.*Names are epoch, loss, val_loss"):
        fit(ModelCheckpoint("{epoch}-{acc}.pt"))


def test_an_epoch_without_validation_counts_for_nothing():
    """Where the fit validates now and then, the epochs in between neither reset nor use up patience."""
    view, callback = View(), EarlyStopping(patience=2)
    for epoch, logs in enumerate([{"val_loss": 1.0}, {"loss": 1.0}, {"val_loss": 1.0}, {"loss": 1.0}]):
        callback.on_epoch_end(view, epoch, logs)
    assert callback.wait == 1
    assert not view.stop_training


def test_terminate_on_nan_ends_training_after_the_step():
    """With the callback a NaN loss ends the fit as finished, in the middle of the epoch, as in Keras; without, it is an error."""
    numbers = []
    count = Lambda(on_batch_end=lambda trainer, step, logs: numbers.append(step))
    history, _ = fit(TerminateOnNaN(), count, factor=float("nan"))
    assert numbers == [0]
    assert math.isnan(history.history["loss"][0]) and len(history.history["loss"]) == 1
    with pytest.raises(NonFiniteLossError):
        fit(factor=float("nan"))
    assert len(fit(TerminateOnNaN())[0].history["loss"]) == 3


def test_lambda_remembers_what_is_in_its_state():
    """The dict given as `state` is part of the commit and filled in place by a resume; the hook sees it."""
    state = {"epochs": 0}

    def count(trainer, epoch, logs):
        state["epochs"] += 1

    callback = Lambda(state, on_epoch_end=count)
    fit(callback)
    saved = callback.state_dict()
    assert saved == {"epochs": 3}
    fit(callback)
    callback.load_state_dict(saved)
    assert state == {"epochs": 3}


def test_hooks_come_in_order(tmp_path):
    """on_epoch_begin comes before the epoch's first batch, on_commit tells the step before which all is durable."""
    events = []
    names = [name for name in vars(Callback) if name.startswith("on_")]
    watch = Lambda(
        **{name: lambda trainer, *about, name=name: events.append((name, *about[:1])) for name in names}
    )
    ask = Lambda(on_batch_end=lambda trainer, step, logs: trainer.commit() if step == 1 else None)
    history, _ = fit(ask, watch, epochs=2, run_dir=tmp_path / "r", save="explicit", check_complete=False)
    steps = [[("on_batch_begin", number), ("on_batch_end", number)] for number in range(4)]
    for epoch in range(2):
        first, second = steps[2 * epoch : 2 * epoch + 2]
        validation = [
            ("on_validation_begin",),
            ("on_validation_end", {"loss": history.history["val_loss"][epoch]}),
        ]
        expected = [("on_epoch_begin", epoch), *first, *second, *validation, ("on_epoch_end", epoch)]
        assert events[1 + 9 * epoch : 10 + 9 * epoch] == [*expected, ("on_commit", 2 * epoch + 2)]
    last = {name: values[-1] for name, values in history.history.items()}
    assert [events[0], *events[19:]] == [("on_train_begin",), ("on_train_end", last), ("on_exit",)]


class Terminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self):
        return True


def test_the_bar_of_a_resumed_run_starts_where_the_run_stands(monkeypatch):
    """After a resume at step 5 of 20 the bar shows 6 after one step, and takes that one step for its speed."""
    monkeypatch.setenv("TERM", "xterm")
    view, bar = View(), ProgressBar(file=Terminal())
    bar.on_train_begin(view)
    bar.on_batch_end(view, 5, {"loss": 1.0})
    (task,) = bar._progress.tasks
    assert (task.completed, task.total) == (6, 20)
    assert [sample.completed for sample in task._progress] == [1]
    bar.on_exit(view)


def test_a_missing_tensorboard_is_named(python):
    """Where the package tensorboard is not installed, the callback says so, with the cure, when it is made."""
    code = "import sys; sys.modules['tensorboard'] = None\nimport samebits\nsamebits.callbacks.TensorBoard('logs')"
    error = python(code, code=1).stderr
    assert re.search(
        r"ModuleNotFoundError: TensorBoard\('logs'\): .*not installed.*pip install tensorboard", error
    )


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: EarlyStopping(mode="least"), "mode='least'"),
        (lambda: EarlyStopping(patience=-1), "patience=-1"),
        (lambda: EarlyStopping(patience="3"), r"EarlyStopping\(patience='3'\): a number of epochs"),
        (lambda: EarlyStopping(start_from_epoch=None), "start_from_epoch=None"),
        (lambda: EarlyStopping(monitor=None), r"EarlyStopping\(monitor=None\): the name of a metric"),
        (lambda: EarlyStopping(min_delta="0.1"), r"EarlyStopping\(min_delta='0.1'\): a number"),
        (lambda: EarlyStopping(baseline=float("nan")), "baseline=nan"),
        (lambda: ModelCheckpoint(None), r"ModelCheckpoint\(filepath=None\): a path"),
        (lambda: ModelCheckpoint("best.pt", keep_best="2"), "keep_best='2'"),
        (lambda: CSVLogger(None), r"CSVLogger\(filename=None\): a path"),
        (lambda: CSVLogger("a.csv", separator=None), "separator=None"),
        (lambda: TensorBoard(None), r"TensorBoard\(log_dir=None\): a path"),
        (
            lambda: ReduceLROnPlateau(torch.optim.lr_scheduler.StepLR(SGD, 1)),
            r"optimizer=<.*StepLR.*Trainer\(scheduler=...\)",
        ),
        (lambda: ReduceLROnPlateau(SGD, patience=True), "patience=True"),
        (lambda: Lambda(print), r"Lambda\(state=<built-in.*Lambda\(on_epoch_end=function\)"),
        (lambda: ProgressBar("log.txt"), r"ProgressBar\(file='log.txt'\): an open file"),
        (lambda: EarlyStopping("val_quality"), "monitor='val_quality', mode='auto'"),
        (lambda: ReduceLROnPlateau(SGD, factor=1.5), "factor=1.5"),
        (lambda: ReduceLROnPlateau(SGD, cooldown=-1), "cooldown=-1"),
        (lambda: ReduceLROnPlateau(SGD, min_lr=float("nan")), "min_lr=nan"),
        (lambda: ModelCheckpoint("best.h5"), r"must end in one of .safetensors, .pt, .pth"),
        (lambda: ModelCheckpoint("{epoch.pt"), "cannot be filled in"),
        (lambda: ModelCheckpoint("best.pt", keep_best=0), "keep_best=0"),
        (lambda: ModelCheckpoint("best.pt", keep_best=2), r"Put \{epoch\} into the path"),
        (lambda: ModelCheckpoint("best.pt", keep_best=1, save_best_only=True), "choose one"),
        (lambda: ModelCheckpoint("best.pt", "quality", keep_best=1), "monitor='quality', mode='auto'"),
        (lambda: LearningRateScheduler(0.1), "give a function"),
        (lambda: fit(LearningRateScheduler(lambda epoch: None)), r"schedule\(epoch=0\) returned None"),
        (lambda: fit(LearningRateScheduler(lambda epoch, lr: lr * float("inf"))), "inf"),
        (lambda: CSVLogger("log.csv", separator=", "), "separator=', '"),
        (lambda: CSVLogger("log.csv", update_freq="step"), "update_freq='step'"),
        (lambda: TensorBoard("logs", update_freq=10), "update_freq=10.*one of 'epoch', 'batch'"),
        (lambda: Lambda(on_epoch_ends=print), r"no such hook. Hooks are on_train_begin, .*on_commit"),
        (lambda: Lambda(on_epoch_end=3), "give a function"),
        (lambda: samebits.Trainer(nn.Linear(1, 1), None, SGD, callbacks=[EarlyStopping]), "Give an instance"),
        (lambda: samebits.Trainer(nn.Linear(1, 1), None, SGD, callbacks=EarlyStopping()), "give a list"),
        (lambda: samebits.Trainer(nn.Linear(1, 1), SGD, print), "swapped"),
        (lambda: type("Mine", (Callback,), {"on_epoch_ends": print}), "no hook on_epoch_ends"),
        (
            lambda: samebits.Trainer(nn.Linear(1, 1), None, SGD, callbacks=[print]),
            "not a samebits.callbacks.Callback",
        ),
    ],
)
def test_bad_arguments_are_named(make, named):
    """A bad argument raises one clear error that names it."""
    with pytest.raises(InvalidArgumentError, match=named):
        make()


def test_a_callback_without_state_has_an_empty_one():
    """The base class has the state protocol."""
    callback = Callback()
    assert callback.state_dict() == {}
    callback.load_state_dict({})
