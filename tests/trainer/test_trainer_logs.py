"""What hooks are given: a batch the means over its epoch so far, the end of the training the last values, as in Keras."""

import pytest
import torch

import samebits
from samebits.callbacks import Callback, Lambda, TerminateOnNaN
from samebits.errors import InvalidArgumentError

BATCHES = [(torch.full((n, 2), float(n)), torch.zeros(n, 1)) for n in (4, 2, 6)]


def ones(model, metrics=None, callbacks=()):
    """A trainer with rate 0, whose losses follow from the batches alone."""
    torch.nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return samebits.Trainer(model, torch.nn.MSELoss(), optimizer, metrics=metrics, callbacks=callbacks)


def size(output, target):
    return float(output.abs().mean())


def fitted(callbacks, epochs=2, **options):
    samebits.set_random_seed(1)
    trainer = ones(torch.nn.Linear(2, 1, bias=False), {"size": size}, callbacks)
    return trainer.fit(BATCHES, epochs=epochs, verbose=0, **options)


def test_a_batch_has_the_means_over_the_epoch_so_far():
    """Loss and metrics are means over the samples since the epoch began; the last batch's are the epoch's."""
    seen, ends = [], []
    history = fitted([Lambda(on_batch_end=lambda t, step, logs: seen.append(dict(logs)), on_epoch_end=lambda t, e, logs: ends.append(dict(logs)))])  # fmt: skip
    sizes = [8, (8 * 4 + 4 * 2) / 6, (8 * 4 + 4 * 2 + 12 * 6) / 12]
    assert [logs["size"] for logs in seen] == pytest.approx(sizes * 2)
    assert [logs["loss"] for logs in seen[:2]] == pytest.approx([64, (64 * 4 + 16 * 2) / 6])
    assert seen[2] == seen[5] == ends[0] and history.history["size"] == [ends[0]["size"]] * 2
    assert seen[0] == seen[3]  # negative control: the second epoch begins anew


def test_a_resume_in_mid_epoch_goes_on_with_the_means(tmp_path):
    """After an error in the second epoch's middle the batches that follow have the same logs as without it."""
    whole, parts = [], []
    fitted([Lambda(on_batch_end=lambda t, step, logs: whole.append((step, dict(logs))))])

    def fail(trainer, step, logs):
        if step == 4 and not trainer.resumed:
            raise KeyError(step)
        parts.append((step, dict(logs)))
        trainer.commit()

    with pytest.raises(KeyError):
        fitted([Lambda(on_batch_end=fail)], run_dir=tmp_path / "run", check_complete=False)
    fitted([Lambda(on_batch_end=fail)], run_dir=tmp_path / "run", check_complete=False)
    assert dict(parts) == dict(whole) and len(parts) < 2 * len(whole)


class Ends(Callback):
    def __init__(self):
        self.logs = None

    def on_train_end(self, trainer, logs):
        self.logs = logs


class EndsAlone(Callback):
    ended = False

    def on_train_end(self, trainer):
        self.ended = True


def test_the_end_of_the_training_has_the_last_values(tmp_path):
    """`on_train_end` gets the last of each name in the history, from a finished run too; a hook of the trainer alone is called as before."""

    def last_values():
        callback, alone = Ends(), EndsAlone()
        history = fitted([callback, alone], validation_data=BATCHES[:1], run_dir=tmp_path / "run").history
        assert alone.ended
        return callback.logs, history

    logs, history = last_values()
    assert logs == {name: values[-1] for name, values in history.items()}
    assert {"loss", "size", "val_loss", "val_size"} == set(logs)
    assert last_values()[0] == logs


def test_a_hook_with_other_arguments_is_refused_before_training():
    """Negative control: Keras's `on_train_end(logs)` with a third argument would fail at the end, and the message has the arguments."""

    class Wrong(Callback):
        def on_train_end(self, trainer, logs, more):
            pass

    with pytest.raises(InvalidArgumentError, match=r"on_train_end takes .*called with \(trainer, logs\)"):
        fitted([Wrong()])


def test_a_loss_that_is_no_number_still_ends_the_training():
    """The mean over the epoch so far of a NaN is NaN: `TerminateOnNaN` stops after that batch."""
    seen = []
    samebits.set_random_seed(1)
    count = Lambda(on_batch_end=lambda t, step, logs: seen.append(step))
    trainer = ones(torch.nn.Linear(2, 1, bias=False), None, [TerminateOnNaN(), count])
    trainer.fit(
        [BATCHES[0], (torch.full((2, 2), torch.nan), torch.zeros(2, 1)), BATCHES[0]], epochs=3, verbose=0
    )
    assert seen == [0, 1]


def test_callbacks_know_the_epochs_and_the_steps():
    """`trainer.epochs`, `steps_per_epoch`, `initial_epoch` and `validates` are those of the fit under way, and public."""
    seen = []
    look = Lambda(
        on_train_begin=lambda t: seen.append((t.epochs, t.steps_per_epoch, t.initial_epoch, t.validates))
    )
    fitted([look])
    fitted([look], epochs=3, steps_per_epoch=2, initial_epoch=1, validation_data=BATCHES)
    assert seen == [(2, 3, 0, False), (3, 2, 1, True)]
    for name in ("epochs", "steps_per_epoch", "initial_epoch", "validates"):
        assert name in samebits.Trainer.__annotations__
