import math

import pytest
import torch
from torch import nn

import samebits
from samebits.callbacks import Callback, EarlyStopping, ReduceLROnPlateau
from samebits.errors import InvalidArgumentError


SGD = torch.optim.SGD([torch.zeros(1)], 0.1)


class View:
    """What a callback sees of a trainer."""

    def __init__(self):
        self.model = nn.Linear(1, 1)
        self.stopped = False

    def stop_training(self):
        self.stopped = True


def feed(callback, values, name="val_loss", view=None):
    """Gives one value per epoch; returns the epochs after which training was to stop."""
    view = view or View()
    for epoch, value in enumerate(values):
        with torch.no_grad():
            view.model.weight.fill_(epoch)
        callback.on_epoch_end(view, epoch, {name: value})
        if view.stopped:
            return epoch
    return None


@pytest.mark.parametrize(
    ("arguments", "values", "stops"),
    [
        ({"patience": 0}, [1.0, 0.9, 0.95], 2),
        ({"patience": 2}, [1.0, 0.9, 0.95, 0.94, 0.8], 3),
        ({"patience": 2}, [1.0, 0.9, 0.95, 0.8, 0.85, 0.84], 5),
        ({"patience": 1, "min_delta": 0.1}, [1.0, 0.95, 0.94], 1),
        ({"patience": 1, "mode": "max"}, [0.1, 0.2, 0.2], 2),
        ({"patience": 2, "baseline": 0.5}, [0.9, 0.8, 0.7], None),
        ({"patience": 1, "start_from_epoch": 3}, [1.0, 2.0, 3.0, 4.0, 5.0], 4),
        ({"patience": 0}, [1.0], None),
        ({"patience": 1}, [1.0, math.nan, math.nan], 1),
    ],
)
def test_early_stopping_stops_where_keras_does(arguments, values, stops):
    """EarlyStopping ends training after the epoch that Keras 3's rule gives for the same series."""
    assert feed(EarlyStopping(**arguments), values) == stops


def test_early_stopping_restores_the_best_weights():
    """After training the model has the weights of the best epoch, or the last ones when that is switched off."""
    for restore, expected in ((True, 1.0), (False, 3.0)):
        view, callback = View(), EarlyStopping(patience=2, restore_best_weights=restore)
        feed(callback, [1.0, 0.5, 0.7, 0.6], view=view)
        callback.on_train_end(view)
        assert view.model.weight.item() == expected


@pytest.mark.parametrize(
    ("arguments", "values", "rates"),
    [
        ({"patience": 2, "factor": 0.5}, [1.0, 1.0, 1.0, 1.0, 1.0], [1, 1, 0.5, 0.5, 0.25]),
        ({"patience": 1, "factor": 0.5, "cooldown": 2}, [1.0, 1.0, 1.0, 1.0, 1.0], [1, 0.5, 0.5, 0.25, 0.25]),
        ({"patience": 1, "factor": 0.1, "min_lr": 0.05}, [1.0, 1.0, 1.0], [1, 0.1, 0.05]),
        ({"patience": 1, "factor": 0.5, "min_delta": 0.2}, [1.0, 0.9, 0.7], [1, 0.5, 0.5]),
        ({"patience": 1, "factor": 0.5, "mode": "max"}, [0.1, 0.2, 0.1], [1, 1, 0.5]),
    ],
)
def test_reduce_lr_on_plateau_reduces_where_keras_does(arguments, values, rates):
    """The learning rate after each epoch is the one that Keras 3's rule gives for the same series."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    callback, seen = ReduceLROnPlateau(optimizer, **arguments), []
    for epoch, value in enumerate(values):
        callback.on_epoch_end(View(), epoch, {"val_loss": value})
        seen.append(optimizer.param_groups[0]["lr"])
    assert seen == pytest.approx(rates)


def test_state_carries_over():
    """A new callback with the old one's state stops at the same epoch; without the state it does not."""
    values = [1.0, 0.5, 0.7, 0.6, 0.65, 0.66]
    first = EarlyStopping(patience=3)
    feed(first, values[:3])
    second, blank = EarlyStopping(patience=3), EarlyStopping(patience=3)
    second.load_state_dict(first.state_dict())
    assert feed(second, values[3:]) == 1
    assert feed(blank, values[3:]) != 1


def test_a_missing_metric_is_named():
    """A monitored name that is not among the logs is a warning that lists the logs."""
    with pytest.warns(UserWarning, match="monitor='val_loss'.*loss"):
        EarlyStopping().on_epoch_end(View(), 0, {"loss": 1.0})


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: EarlyStopping(mode="least"), "mode='least'"),
        (lambda: EarlyStopping(patience=-1), "patience=-1"),
        (lambda: ReduceLROnPlateau(None, factor=1.5), "factor=1.5"),
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
