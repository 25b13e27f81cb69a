"""A program of Lightning, as its documentation has it: `python lightning_program.py plain|resumable FOLDER`.

Augmentation in workers, dropout, accumulation, clipping, a plateau and early stopping that watch epoch means,
torchmetrics, values that are not logged at each batch, validation. `$CASE`: another setting of the trainer.
"""

import json
import os
import sys
import warnings

import lightning as L
import torch
import torchmetrics
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    EarlyStopping,
    EMAWeightAveraging,
    ModelCheckpoint,
)
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import nn
from torch.utils.data import DataLoader

from killed_programs import tick
from noisy_digits import Digits
from samebits._digest import of_value

warnings.simplefilter("ignore")
CASE = os.environ.get("CASE", "")
TRAINERS = {
    "": {"max_epochs": 6, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
    "short": {"max_epochs": 3, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5},
    "interval": {"max_steps": 27, "accumulate_grad_batches": 2, "val_check_interval": 0.5},
    "manual": {"max_epochs": 4},
    "averaged": {"max_epochs": 5},
    "limited": {"max_epochs": 5, "limit_train_batches": 6, "accumulate_grad_batches": 4},
    "stream": {"max_epochs": 5, "limit_train_batches": 6},
    "unfreeze": {"max_epochs": 5, "accumulate_grad_batches": 2},
    "ranks": {"max_epochs": 4, "devices": 2, "strategy": "ddp"},
}


class Stream(torch.utils.data.IterableDataset):
    """The digits of training, without a length."""

    def __iter__(self):
        digits = Digits(train=True)
        return (digits[index] for index in torch.randperm(len(digits)).tolist())


class Data(L.LightningDataModule):
    def train_dataloader(self):
        workers = int(os.environ.get("WORKERS", "2"))
        if CASE == "stream":
            return DataLoader(Stream(), 32, num_workers=workers)
        return DataLoader(Digits(train=True), 32, shuffle=True, num_workers=workers)

    def val_dataloader(self):
        return DataLoader(Digits(train=False), 32)


class Lines(DummyLogger):
    """Prints what is logged."""

    @rank_zero_only
    def log_metrics(self, metrics, step=None):
        print("LOG", step, {name: float(value).hex() for name, value in sorted(metrics.items())}, flush=True)


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()),
            *(nn.Dropout(0.3), nn.Linear(512, 10)),
        )
        self.right = torchmetrics.Accuracy(task="multiclass", num_classes=10)
        self.val_right = torchmetrics.Accuracy(task="multiclass", num_classes=10)

    def training_step(self, batch, index):
        logits = self.net(batch[0])
        loss = nn.functional.cross_entropy(logits, batch[1])
        self.right(logits, batch[1])
        self.log("right", self.right, on_step=False, on_epoch=True)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=CASE == "ranks")
        self.log("least", loss, on_step=False, on_epoch=True, reduce_fx="min")
        if index % 7 == 2:
            self.log("rare", loss, on_step=True, on_epoch=True, reduce_fx="sum")
        return loss

    def validation_step(self, batch, index):
        logits = self.net(batch[0])
        self.val_right(logits, batch[1])
        self.log("val_right", self.val_right)
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW([one for one in self.parameters() if one.requires_grad], 0.003)
        if CASE == "averaged":
            total = self.trainer.estimated_stepping_batches
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=total)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=0, factor=0.5, threshold=0.16
        )
        watched = {"scheduler": plateau, "monitor": "loss_epoch"}
        if CASE == "interval":
            watched = {"scheduler": plateau, "monitor": "val_loss", "interval": "step", "frequency": 5}
        return {"optimizer": optimizer, "lr_scheduler": watched}

    def on_train_batch_end(self, outputs, batch, index):
        self.log("after", outputs["loss"], on_step=False, on_epoch=True)
        if self.trainer.is_global_zero:
            tick()

    def on_train_epoch_end(self):
        rate = self.trainer.optimizers[0].param_groups[0]["lr"]
        if self.trainer.is_global_zero:
            print("EPOCH", self.current_epoch, rate, self.trainer.global_step, flush=True)


class Unfreeze(BaseFinetuning):
    """Trains the normalization, from the second epoch on the last layer, and then the convolution, too."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.net)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch in (1, 2):
            layer = pl_module.net[5 if epoch == 1 else 0]
            self.unfreeze_and_add_param_group(layer, optimizer, lr=0.001 * epoch)


class Manual(Classifier):
    """Two optimizers in turn, gradients of two batches, a scheduler stepped by hand."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        self.manual_backward(loss)
        if index % 2:
            optimizer = self.optimizers()[index // 2 % 2]
            optimizer.step()
            self.zero_grad()
            self.lr_schedulers().step()
        return {"loss": loss}

    def configure_optimizers(self):
        first = torch.optim.AdamW(self.net[0].parameters(), 0.003)
        second = torch.optim.SGD(self.net[5].parameters(), 0.1, momentum=0.9)
        return [first, second], [torch.optim.lr_scheduler.ExponentialLR(second, 0.98)]


def main(kind, folder):
    L.seed_everything(1, workers=True)
    model = Manual() if CASE == "manual" else Classifier()
    watched = "val_loss" if CASE == "interval" else "loss_epoch"
    stop = EarlyStopping(watched, patience=2, min_delta=float(os.environ.get("MIN_DELTA", "0.02")))
    callbacks = [ModelCheckpoint(f"{folder}/checkpoints", every_n_train_steps=4, save_last=True), stop]
    if kind == "resumable":
        import samebits.integrations.lightning

        callbacks.append(samebits.integrations.lightning.Resumable(f"{folder}/run", save=3))
    if CASE == "unfreeze":
        callbacks.append(Unfreeze())
    if CASE == "averaged":
        callbacks[1] = EMAWeightAveraging(decay=0.9)
    trainer = L.Trainer(
        callbacks=callbacks, accelerator="cpu", logger=Lines(), log_every_n_steps=1, deterministic=True,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        **{**TRAINERS[CASE], **json.loads(os.environ.get("ARGUMENTS", "{}"))},
    )  # fmt: skip
    trainer.fit(model, Data(), ckpt_path="last" if kind == "plain" else None)
    optimizers = [optimizer.state_dict() for optimizer in trainer.optimizers]
    state = {"weights": model.state_dict(), "optimizers": optimizers}
    values = sorted((name, float(value)) for name, value in trainer.callback_metrics.items())
    best = None if CASE == "averaged" else stop.best_score.item()
    if trainer.is_global_zero:
        print("FINAL", of_value(state), trainer.global_step, trainer.current_epoch, best, values, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
