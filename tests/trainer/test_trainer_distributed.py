"""`Trainer.fit` on several ranks: one history, one log, equal decisions, and equal bits after a resume."""

import csv

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import samebits
from at_step import AtStep, ends
from samebits import _digest as digest
from samebits import callbacks
from samebits._context import CheckOverrides, process


class NaN(callbacks.Callback):
    """Makes the weights of one rank's batch infinite, once."""

    def on_batch_begin(self, trainer, step):
        if step == 5 and dist.get_rank() == 1:
            trainer.model.module[0].weight.data.fill_(float("inf"))


def example(index):
    return torch.randn(8) + index / 24, torch.tensor(index % 3)


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def train(run_dir, log, *, cut=False, broken=False):
    samebits.set_random_seed(3)
    process.overrides = CheckOverrides(commit_steps=(7,) if cut else None)
    process.observers[:] = [AtStep("step_begins", 9, ends)] if cut else []
    model = DDP(
        nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Dropout(0.3), nn.ReLU(), nn.Linear(64, 3))
    )
    opt = torch.optim.Adam(model.parameters(), 0.01)
    training = samebits.data.Pipeline.from_source(range(24)).shuffle().map(example).batch(6)
    validation = samebits.data.Pipeline.from_source(range(12)).map(example).batch(6)
    watching = [
        callbacks.ReduceLROnPlateau(opt, patience=0, min_delta=0.5),
        callbacks.EarlyStopping("val_loss", patience=3, min_delta=0.01),
        callbacks.CSVLogger(log),
        *([NaN(), callbacks.TerminateOnNaN()] if broken else []),
    ]
    trainer = samebits.Trainer(
        model,
        nn.functional.cross_entropy,
        opt,
        callbacks=watching,
        metrics={"accuracy": accuracy},
        ema=0.9,
        accumulate=2,
    )
    history = trainer.fit(training, 4, validation_data=validation, run_dir=run_dir, verbose=2)
    bits = digest.of_value([model.module.state_dict(), opt.state_dict(), trainer.ema.state_dict()])
    weights = digest.of_value([p.detach() for p in model.parameters()])
    return {"bits": bits, "weights": weights, "history": history.history, "epoch": history.epoch}


def whole_and_resumed(folder):
    whole = train(None, folder / "whole.csv")
    with pytest.raises(InterruptedError):
        train(folder / "run", folder / "log.csv", cut=True)
    return whole, train(folder / "run", folder / "log.csv")


@pytest.mark.slow
def test_fit_on_three_ranks_resumes(ranks, tmp_path, capfd):
    """Cut in an epoch's middle and resumed: weights, averages and histories as without, the same history on all ranks, and
    one log that has each epoch once."""
    results, _ = ranks(3, whole_and_resumed, tmp_path)
    wholes, resumed = zip(*results, strict=True)
    assert wholes == resumed
    for name in ("weights", "history", "epoch"):
        assert all(one[name] == wholes[0][name] for one in wholes)
    assert len({one["bits"] for one in wholes}) == 3  # running statistics are each rank's own
    assert set(wholes[0]["history"]) >= {"loss", "accuracy", "val_loss", "val_accuracy"}
    assert (tmp_path / "log.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row["val_loss"]) for row in rows] == wholes[0]["history"]["val_loss"]
    printed = capfd.readouterr()
    assert (printed.out + printed.err).count("poch 4") == 2  # rank 0's line, of two fits


def test_a_loss_that_is_nan_on_one_rank_stops_all(ranks, tmp_path):
    """TerminateOnNaN sees the mean over the ranks, so that all stop at the same step."""
    results, _ = ranks(3, lambda: train(None, tmp_path / "log.csv", broken=True))
    assert all(one["epoch"] == results[0]["epoch"] for one in results)


def sums():
    rank = dist.get_rank()
    with samebits.Run(None) as run:
        values = {"a": [0.1, 0.2, 0.3][rank], "b": float("nan") if rank == 1 else 1.0}
        found = run.sum_over_ranks(values)
        with pytest.raises(samebits.errors.RanksError, match="the ranks sum other values"):
            run.sum_over_ranks({"a" if rank else "c": 1.0})
        return found["a"], found["b"] != found["b"], run.rank, run.world_size


def test_sums_are_taken_in_the_order_of_ranks(ranks):
    """`run.sum_over_ranks` adds up rank by rank, exactly, and gives all ranks the same bits."""
    samebits.set_random_seed(1)
    results, _ = ranks(3, sums)
    assert results == [((0.1 + 0.2) + 0.3, True, rank, 3) for rank in range(3)]


def best_epochs(run_dir):
    samebits.set_random_seed(3)
    model = DDP(nn.Linear(8, 3))
    opt = torch.optim.SGD(model.parameters(), 2.0)  # too much: the loss goes up and down
    data = samebits.data.Pipeline.from_source(range(24)).map(example).batch(6)
    trainer = samebits.Trainer(model, nn.functional.cross_entropy, opt)
    keeping = {"run_dir": run_dir, "keep": 1, "keep_best": 2, "best": "val_loss", "save": "explicit"}
    return trainer.fit(data, 8, validation_data=data, verbose=0, **keeping).history["val_loss"]


def test_the_best_epochs_are_committed_at_their_end(ranks, tmp_path):
    """On two ranks, too, the commits kept for `best` are those of the boundaries behind the best epochs."""
    (values, other), _ = ranks(2, best_epochs, tmp_path / "run")
    best = sorted(range(8), key=lambda epoch: values[epoch])[:2]
    kept = {int(path.name[:12]) for path in (tmp_path / "run" / "commits").iterdir()}
    assert values == other and 7 not in best
    assert kept == {4 * epoch + 4 for epoch in best} | {32}


def accumulated(run_dir, cut=None):
    """Groups of three batches, five batches per epoch, a validation by the DDP model itself; what each step left behind."""
    samebits.set_random_seed(3)
    process.overrides = CheckOverrides(commit_steps=None if cut is None else (cut,))
    process.observers[:] = [] if cut is None else [AtStep("step_begins", cut, ends)]
    model = DDP(nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3)))
    opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    data = samebits.data.Pipeline.from_source(range(30)).shuffle().map(example).batch(6)
    seen = []

    def look(trainer, step, logs):
        grad = model.module[0].weight.grad
        seen.append((grad is not None and digest.of_value(grad), digest.of_value(model.state_dict())))

    look = callbacks.Lambda(on_batch_end=look)
    trainer = samebits.Trainer(model, nn.functional.cross_entropy, opt, accumulate=3, callbacks=[look])
    trainer.fit(data, 2, validation_data=data, run_dir=run_dir, verbose=0, check_complete=False)
    return seen


def cut_in_each_place_of_a_group(folder):
    whole = accumulated(None)
    resumed = []
    for cut in range(1, 9):
        with pytest.raises(InterruptedError):
            accumulated(folder / f"{cut}", cut)
        resumed.append(accumulated(folder / f"{cut}"))
    return whole, resumed


@pytest.mark.slow
def test_gradients_are_summed_once_per_group_and_resume(ranks, tmp_path):
    """accumulate=3 on three ranks: until a group's last batch each rank has a gradient of its own, which a commit there keeps:
    cut behind each step of the first two epochs, each step behind it leaves the same bits on each rank."""
    results, _ = ranks(3, cut_in_each_place_of_a_group, tmp_path)
    for whole, resumed in results:
        assert resumed == [whole[cut:] for cut in range(1, 9)]
    for step, of_ranks in enumerate(zip(*(whole for whole, _ in results), strict=True)):
        assert len({grad for grad, _ in of_ranks}) == (1 if step % 5 in (2, 4) else 3)  # 1: there is none
