"""A program of Ignite, as its documentation has it: `python ignite_program.py plain|resumable FOLDER`.

Augmentation in workers, dropout, accumulation, a warm-up and a plateau, moving averages of weights and losses, metrics,
validation, early stopping, the best and the last checkpoints. ENGINE: deterministic; LENGTH: iterations of an epoch;
HANDLED: errors are handled, and the update has one in this iteration; SAVE_S: the time of a save.
"""

import os
import sys
import time
import warnings
from pathlib import Path

import torch
from ignite.engine import DeterministicEngine, Engine, Events, create_supervised_evaluator
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping, EMAHandler, LinearCyclicalScheduler
from ignite.handlers.param_scheduler import ReduceLROnPlateauScheduler
from ignite.metrics import Accuracy, Loss, RunningAverage
from ignite.utils import manual_seed
from torch import nn
from torch.utils.data import DataLoader

from killed_programs import tick
from noisy_digits import Digits
from samebits._digest import of_value

warnings.simplefilter("ignore")


class SlowSaver(DiskSaver):
    """Takes its time, so that a kill may be inside."""

    def __call__(self, checkpoint, filename, metadata=None):
        super().__call__(checkpoint, filename, metadata)
        time.sleep(float(os.environ.get("SAVE_S", "0")))

    def remove(self, filename):
        super().remove(filename)
        time.sleep(float(os.environ.get("SAVE_S", "0")))


def main(kind, folder):
    manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(512, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 0.003)
    train = DataLoader(Digits(True), 32, shuffle=True, num_workers=int(os.environ.get("WORKERS", "2")))
    val = DataLoader(Digits(False), 32)
    loss_fn = nn.CrossEntropyLoss()
    faulty = int(os.environ.get("HANDLED", "0"))

    def update(engine, batch):
        model.train()
        if engine.state.iteration == faulty:
            raise ValueError("a batch that cannot be read")
        loss = loss_fn(model(batch[0]), batch[1])
        (loss / 3).backward()
        if engine.state.iteration % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    trainer = (DeterministicEngine if os.environ.get("ENGINE") == "deterministic" else Engine)(update)
    evaluator = create_supervised_evaluator(model, {"loss": Loss(loss_fn), "accuracy": Accuracy()})
    average = RunningAverage(output_transform=lambda loss: loss, epoch_bound=False)
    average.attach(trainer, "average")
    mean = RunningAverage(output_transform=lambda loss: loss)
    mean.attach(trainer, "mean")
    ema = EMAHandler(model, momentum=0.1, momentum_warmup=0.2, warmup_iters=20)
    ema.attach(trainer, event=Events.ITERATION_COMPLETED(every=2))
    cyclic = LinearCyclicalScheduler(optimizer, "lr", 0.001, 0.004, cycle_size=14)
    plateau = ReduceLROnPlateauScheduler(optimizer, "loss", factor=0.7, patience=0, threshold=0.1)
    shown = []

    @trainer.on(Events.ITERATION_COMPLETED)
    def tell(engine):
        tick()

    @trainer.on(Events.ITERATION_COMPLETED(every=4))
    def step(engine):
        if engine.state.epoch < 4:
            cyclic(engine)

    @trainer.on(Events.EPOCH_COMPLETED | Events.ITERATION_COMPLETED(every=7))
    def validate(engine):
        evaluator.run(val)
        metrics = {**engine.state.metrics, **evaluator.state.metrics}
        shown.append([engine.state.iteration, *(float(metrics[name]) for name in sorted(metrics))])

    if faulty:
        trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: None)
    evaluator.add_event_handler(Events.COMPLETED, plateau)
    early = EarlyStopping(3, lambda engine: -engine.state.metrics["loss"], trainer, min_delta=0.02)
    evaluator.add_event_handler(Events.COMPLETED, early)
    objects = {"trainer": trainer, "model": model, "optimizer": optimizer, "ema": ema.ema_model}
    step_of = lambda *_: trainer.state.iteration
    saver = SlowSaver(f"{folder}/last", create_dir=True, require_empty=False)
    last = Checkpoint(objects, saver, n_saved=2, global_step_transform=step_of)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), last)
    best = Checkpoint(
        {"model": model}, SlowSaver(f"{folder}/best", create_dir=True, require_empty=False), n_saved=1,
        score_name="accuracy", global_step_transform=step_of,
    )  # fmt: skip
    evaluator.add_event_handler(Events.COMPLETED, best)
    length = int(os.environ.get("LENGTH", "0")) or None
    if kind == "resumable":
        from samebits.integrations.ignite import resumable

        resumable(trainer, f"{folder}/run", save=3, shown=shown)
    else:
        found = sorted(Path(folder, "last").glob("*.pt"), key=lambda path: int(path.stem.rsplit("_", 1)[1]))
        if found:
            Checkpoint.load_objects(objects, torch.load(found[-1], weights_only=False))
    trainer.run(train, max_epochs=6, epoch_length=length)
    files = sorted(path.name for name in ("last", "best") for path in Path(folder, name).glob("*.pt"))
    weights = [torch.load(f"{folder}/best/{name}", weights_only=True) for name in files if "accuracy" in name]
    values = [
        model.state_dict(),
        optimizer.state_dict(),
        ema.ema_model.state_dict(),
        weights,
        evaluator.state.metrics,
    ]
    rest = (
        early.counter,
        early.best_score,
        trainer.state.iteration,
        trainer.state.epoch,
        trainer.state.ema_momentum,
    )
    print("FINAL", of_value(values), *rest, sorted(trainer.state.metrics.items()), files, shown, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
