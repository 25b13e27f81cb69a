"""A program of Accelerate, as its documentation has it: `python accelerate_program.py plain|resumable FOLDER`.

Augmentation in workers, dropout, accumulation whose groups end with the epoch, clipping, bf16, a scheduler by
step, validation. `$CASE`: another setting. Under torchrun: several processes.
"""

import os
import sys
import warnings
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import GradientAccumulationPlugin, ProjectConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, WeightedRandomSampler

import samebits
from killed_programs import tick
from noisy_digits import Digits
from samebits._digest import of_value

warnings.simplefilter("ignore")
CASE = os.environ.get("CASE", "")
EPOCHS = 4


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
        *(nn.Dropout(0.3), nn.Linear(512, 10)),
    )


class Stream(torch.utils.data.IterableDataset):
    """The digits of training, without numbers."""

    def __iter__(self):
        digits = Digits(train=True)
        return (digits[index] for index in torch.randperm(len(digits)).tolist())


def train_loader():
    workers = int(os.environ.get("WORKERS", "2"))
    if CASE == "stream":
        return DataLoader(Stream(), 32)
    data = Digits(train=True)
    if CASE == "weighted":
        sampler = WeightedRandomSampler(1.0 + data.labels, len(data))
        return DataLoader(data, 24, sampler=sampler, num_workers=workers)
    return DataLoader(data, 24, shuffle=True, num_workers=workers, drop_last=CASE == "drop")


def main(kind, folder):
    set_seed(1)
    config = DataLoaderConfiguration(use_seedable_sampler=CASE == "seedable", split_batches=CASE == "split")
    accelerator = Accelerator(
        cpu=True, dataloader_config=config, mixed_precision="bf16" if CASE == "bf16" else "no",
        gradient_accumulation_plugin=GradientAccumulationPlugin(3, sync_with_dataloader=CASE != "straddle"),
        project_config=ProjectConfiguration(f"{folder}/accelerate", automatic_checkpoint_naming=True, total_limit=3),
    )  # fmt: skip
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.003)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / 10) * 0.97**step
    )
    model, optimizer, train, val, scheduler = accelerator.prepare(
        model, optimizer, train_loader(), DataLoader(Digits(train=False), 48), scheduler
    )
    updates = torch.zeros((), dtype=torch.int64)
    losses = []

    def update(x, y):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
                updates.add_(1)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.is_main_process:
            tick()

    def validate(batches):
        model.eval()
        right = seen = 0
        with torch.no_grad():
            for x, y in batches:
                found, y = accelerator.gather_for_metrics((model(x).argmax(1), y))
                right, seen = right + int((found == y).sum()), seen + len(y)
        model.train()
        return right, seen

    if kind == "resumable":
        objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "accelerator": accelerator}
        with samebits.Run(f"{folder}/run", save=3, **objects) as run:
            run.state.right, run.state.updates = [], updates
            if CASE == "epochs":
                for epoch in run.epochs(EPOCHS):
                    for _, (x, y) in epoch.steps(train):
                        update(x, y)
                    run.state.right.append(validate(val))
            else:
                for step, (x, y) in run.steps(train, epochs=EPOCHS):
                    update(x, y)
                    if step.ends_epoch or (CASE == "validate" and step.batch_index % 5 == 1):
                        run.state.right.append(validate(run.validate(val) if CASE == "validate" else val))
            losses = run.state.right
    else:
        losses = plain(accelerator, train, lambda x, y: update(x, y), lambda: validate(val))
    values = of_value(
        [accelerator.unwrap_model(model).state_dict(), optimizer.state_dict(), scheduler.state_dict()]
    )
    accelerator.wait_for_everyone()
    count = int(updates) if kind == "resumable" else 0
    if accelerator.is_main_process:
        print("FINAL", values, count, accelerator.step, losses, flush=True)
    accelerator.end_training()


def plain(accelerator, train, update, validate):
    """The loop with `save_state`, `load_state` and `skip_first_batches`."""
    done, saved = (
        0,
        sorted(Path(accelerator.project_dir).glob("checkpoints/*"), key=lambda one: int(one.name[11:])),
    )
    if saved:
        accelerator.load_state(str(saved[-1]))
        number = int(saved[-1].name[11:])
        accelerator.project_configuration.iteration, done = number + 1, (number + 1) * 5
    right = []
    for epoch in range(done // len(train), EPOCHS):
        skip = done - epoch * len(train)
        for x, y in accelerator.skip_first_batches(train, skip) if skip else train:
            update(x, y)
            done += 1
            if done % 5 == 0:
                accelerator.save_state()
        right.append(validate())
    return right


if __name__ == "__main__":
    main(*sys.argv[1:])
