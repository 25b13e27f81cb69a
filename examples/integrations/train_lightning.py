"""Handwritten digits with Lightning's Trainer: augmentation in workers, dropout, a plateau, early stopping, validation.

python examples/integrations/train_lightning.py                    # start it again after a kill and it goes on
samebits verify examples/integrations/train_lightning.py           # prove that it ends with the same bits
"""

import lightning as L
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from samebits.integrations.lightning import Resumable


class Digits(Dataset):
    """8 x 8 digits; those of training are shifted by up to one pixel and get noise."""

    def __init__(self, train):
        digits = load_digits()
        part = slice(0, 1400) if train else slice(1400, None)
        self.images = torch.tensor(digits.images[part], dtype=torch.float32)[:, None] / 16
        self.labels, self.train = torch.tensor(digits.target[part]), train

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            shift = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll(shift, (1, 2)) + 0.1 * torch.randn(image.shape)
        return image, self.labels[index]


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Dropout(0.2), nn.Linear(256, 10)),
        )
        self.accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=10)

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        logits = self.net(batch[0])
        self.accuracy(logits, batch[1])
        self.log("val_accuracy", self.accuracy)
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 0.003)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}


def main():
    L.seed_everything(1, workers=True)
    train = DataLoader(Digits(train=True), 32, shuffle=True, num_workers=2)
    val = DataLoader(Digits(train=False), 128)
    model = Classifier()
    trainer = L.Trainer(
        max_epochs=8,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[EarlyStopping("val_loss", patience=3), Resumable("runs/lightning")],
    )
    trainer.fit(model, train, val)
    right = float(trainer.callback_metrics["val_accuracy"])
    print(f"{trainer.global_step} steps, {right:.4f} of the digits right")


if __name__ == "__main__":
    main()
