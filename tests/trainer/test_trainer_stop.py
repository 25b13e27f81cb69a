"""`trainer.stop_training = True`, as in Keras: the epoch that it cuts short ends like any other."""

import pytest
import torch
from torch import nn

import samebits
from samebits import _digest as digest


class Cut(Exception):
    """Ends a run as a kill would."""


class Events(samebits.callbacks.Callback):
    """Writes the names of the hooks, and sets `stop_training` to `values` at the ends of the batches with these numbers."""

    def __init__(self, values):
        self.values, self.events = values, []

    def on_batch_end(self, trainer, step, logs):
        self.events.append(f"batch {step}")
        if step in self.values:
            trainer.stop_training = self.values[step]

    def on_validation_end(self, trainer, logs):
        self.events.append("validation")

    def on_epoch_end(self, trainer, epoch, logs):
        self.events.append(f"epoch {epoch}")

    def on_train_end(self, trainer):
        self.events.append("end")


def fit(values, run_dir=None, cut=lambda: False, callback=Events):
    samebits.set_random_seed(1)
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    data = torch.utils.data.TensorDataset(torch.randn(12, 2), torch.arange(12) % 2)
    events = callback(values)

    def loss(output, target):
        if not output.requires_grad and cut():
            raise Cut
        return nn.functional.cross_entropy(output, target)

    loader = samebits.data.DataLoader(data, batch_size=4, shuffle=True)
    trainer = samebits.Trainer(model, loss, optimizer, callbacks=[events])
    validation = samebits.data.DataLoader(data, batch_size=4)
    options = {"ignore": ["callback_0_Events", "self.loss_fn.cut"], "save": "0.000001s"} if run_dir else {}
    history = trainer.fit(loader, 3, validation_data=validation, run_dir=run_dir, verbose=0, **options)
    assert trainer.stop_training is False  # of no fit
    return events.events, history.history, digest.of_value([model.state_dict(), optimizer.state_dict()])


def test_an_epoch_that_is_cut_short_is_validated_and_is_in_the_history():
    """Stopped after batch 4, the second of epoch 1: its validation, on_epoch_end and row of the history are there."""
    events, history, _ = fit({4: True})
    whole, _, _ = fit({})
    assert events == [*whole[: whole.index("batch 4") + 1], "validation", "epoch 1", "end"]
    assert len(history["loss"]) == len(history["val_loss"]) == 2


def test_a_stop_that_is_taken_back_stops_nothing():
    """`stop_training = False` in a later callback of the same step: the training is that without both."""

    class TakesBack(Events):
        def on_batch_end(self, trainer, step, logs):
            super().on_batch_end(trainer, step, logs)
            assert trainer.stop_training is (step in self.values)
            trainer.stop_training = False

    assert fit({1: True, 4: True}, callback=TakesBack) == fit({})
    assert fit({1: True}) != fit({})


@pytest.mark.parametrize("at", [1, 3, 4, 5])
def test_a_kill_in_the_validation_of_an_epoch_that_is_cut_short_loses_nothing(tmp_path, at):
    """Killed in one of the six batches of the two validations of a fit that stops in batch 4: resumed, it ends equal."""
    expected = fit({4: True})[1:]
    seen = []
    with pytest.raises(Cut):
        fit({4: True}, tmp_path, lambda: seen.append(1) or len(seen) == at)
    assert fit({4: True}, tmp_path)[1:] == expected
    assert fit({4: True}, tmp_path)[1:] == expected  # it has finished: nothing is trained
