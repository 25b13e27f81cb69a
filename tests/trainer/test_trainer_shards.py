"""`Trainer(shards=)`: weights, averages, history and callbacks are the same on any number of ranks, killed and resumed too."""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from torch import nn

import samebits
import shard_programs as programs
from samebits import _digest as digest
from samebits.errors import InvalidArgumentError
from trainer_metric import Correct

pytestmark = pytest.mark.usefixtures("one_thread")


class Pairs(programs.Rows):
    def __getitem__(self, index):
        return super().__getitem__(index)[:2]


class KillAt(samebits.callbacks.Callback):
    def __init__(self, step):
        self.step = step

    def on_batch_end(self, trainer, step, logs):
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def fit(folder=None, kill_at=None, precision=None, **options):
    """Digest of the weights, the average, the optimizer and the history."""
    samebits.set_random_seed(1)
    torch.manual_seed(2)
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(96, 4)
    net = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    callbacks = [samebits.callbacks.EarlyStopping(patience=1, restore_best_weights=True)]
    if folder is not None:
        callbacks += [samebits.callbacks.ModelCheckpoint(folder / "best.safetensors")]
        callbacks += [samebits.callbacks.CSVLogger(folder / "log.csv"), KillAt(kill_at)]
    trainer = samebits.Trainer(
        net, nn.CrossEntropyLoss(), optimizer, shards=6, accumulate=2, clip_norm=0.5, ema=0.9,
        metrics={"accuracy": accuracy}, precision=precision, callbacks=callbacks,
        scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0),
    )  # fmt: skip
    loader = samebits.data.DataLoader(Pairs(), batch_size=12, shuffle=True, seed=5)
    history = trainer.fit(
        loader, epochs=3, validation_data=samebits.data.DataLoader(Pairs(), batch_size=7), verbose=0,
        run_dir=None if folder is None else folder / "run", **({"save": 2} if folder else {}), **options
    )  # fmt: skip
    state = [net.state_dict(), trainer.ema.state_dict(), optimizer.state_dict(), vars(history)]
    return digest.of_value(state), history.history["val_loss"]


@pytest.mark.parametrize(
    "precision", [None, *(pytest.param(one, marks=pytest.mark.slow) for one in ("bf16", "fp16"))]
)
def test_any_number_of_ranks_gives_one_history(precision, ranks, forked):
    """Validation of 7 uneven batches, a plateau, early stop, an average, accumulation, in each precision."""
    expected = forked(fit, None, None, precision).value
    for world_size in (2, 3):
        values, _ = ranks(world_size, fit, None, None, precision)
        assert values == [expected] * world_size


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 4])
def test_some_steps_of_a_validation_are_the_same(steps, ranks, forked):
    """`validation_steps`: two ranks read two each of 4, one of them none of 1; the mean is that of one process."""
    expected = forked(of_some, steps).value
    assert ranks(2, of_some, steps)[0] == [expected] * 2
    assert expected != forked(fit).value


def of_some(steps):
    return fit(validation_steps=steps)


def test_killed_with_three_ranks_and_resumed_with_other_numbers(ranks, forked, tmp_path):
    """Callbacks of rank 0 alone have state, too: the checkpoint and the log are those of one process."""
    (tmp_path / "whole").mkdir()
    (tmp_path / "killed").mkdir()
    expected = forked(fit, tmp_path / "whole").value
    for world_size, kill_at in ((3, 3), (2, 8)):
        _, codes = ranks(world_size, fit, tmp_path / "killed", kill_at, code=None)
        assert codes == [-9] * world_size
    assert forked(fit, tmp_path / "killed").value == expected
    for name in ("best.safetensors", "log.csv"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()


def test_metrics_that_count_by_themselves_are_refused():
    """An object counts the shards of its rank alone: the message says what to give."""
    net = nn.Linear(2, 2)
    with pytest.raises(InvalidArgumentError, match="Give a function"):
        samebits.Trainer(
            net,
            nn.CrossEntropyLoss(),
            torch.optim.SGD(net.parameters(), 0.1),
            shards=2,
            metrics={"m": Correct()},
        )
    assert not dist.is_initialized()
