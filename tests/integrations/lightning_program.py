"""A program of Lightning, as its documentation has it: `python lightning_program.py plain|resumable FOLDER`.

Augmentation in workers, dropout, accumulation, clipping, a plateau and early stopping that watch epoch means, validation.
"""

import os
import sys
import warnings

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from killed_programs import tick
from noisy_digits import Digits
from samebits._digest import of_value

warnings.simplefilter("ignore")
WORKERS = int(os.environ.get("WORKERS", "2"))


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(512, 10),
        )

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("least", loss, on_step=False, on_epoch=True, reduce_fx="min")
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.003)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=0, factor=0.5, threshold=0.16
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "loss_epoch"}}

    def on_train_batch_end(self, outputs, batch, index):
        tick()

    def on_train_epoch_end(self):
        means = {name: float(value) for name, value in sorted(self.trainer.callback_metrics.items())}
        print(
            "EPOCH", self.current_epoch, means, self.trainer.optimizers[0].param_groups[0]["lr"], flush=True
        )


def main(kind, folder):
    L.seed_everything(1, workers=True)
    model = Classifier()
    train = DataLoader(Digits(True), 32, shuffle=True, num_workers=WORKERS)
    val = DataLoader(Digits(False), 32)
    saver = ModelCheckpoint(f"{folder}/checkpoints", every_n_train_steps=4, save_last=True)
    callbacks = [
        saver,
        EarlyStopping("loss_epoch", patience=2, min_delta=float(os.environ.get("MIN_DELTA", "0.02"))),
    ]
    if kind == "resumable":
        import samebits.integrations.lightning

        callbacks.append(samebits.integrations.lightning.Resumable(f"{folder}/run", save=3))
    trainer = L.Trainer(
        max_epochs=6, callbacks=callbacks, accelerator="cpu", logger=False, deterministic=True, accumulate_grad_batches=2,
        gradient_clip_val=0.5, enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        val_check_interval=float(os.environ.get("VAL_CHECK", "1.0")), max_steps=int(os.environ.get("MAX_STEPS", "-1")),
    )  # fmt: skip
    trainer.fit(model, train, val, ckpt_path="last" if kind == "plain" else None)
    state = {"weights": model.state_dict(), "optimizer": trainer.optimizers[0].state_dict()}
    values = sorted((name, float(value)) for name, value in trainer.callback_metrics.items())
    print(
        "FINAL",
        of_value(state),
        trainer.global_step,
        trainer.current_epoch,
        callbacks[1].best_score.item(),
        values,
        flush=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
