"""Handwritten digits with Accelerate: augmentation in workers, accumulation, bf16, clipping, a scheduler, validation.

python examples/integrations/train_accelerate.py                                                # one process
torchrun --nproc-per-node 2 examples/integrations/train_accelerate.py                           # two
samebits verify examples/integrations/train_accelerate.py                     # prove that it ends with the same bits
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import samebits


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


def network():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Dropout(0.2), nn.Linear(256, 10)),
    )


def share_right(accelerator, model, loader):
    """Returns the share of the digits that the model names rightly."""
    model.eval()
    right = seen = 0
    with torch.no_grad():
        for images, labels in loader:
            found, labels = accelerator.gather_for_metrics((model(images).argmax(1), labels))
            right, seen = right + int((found == labels).sum()), seen + len(labels)
    model.train()
    return right / seen


def main():
    set_seed(1)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=3)
    train = DataLoader(Digits(train=True), 32, shuffle=True, num_workers=2)
    val = DataLoader(Digits(train=False), 128)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=90)
    model, optimizer, train, val, scheduler = accelerator.prepare(model, optimizer, train, val, scheduler)
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "accelerator": accelerator}
    with samebits.Run("runs/accelerate", **objects) as run:
        for step, (images, labels) in run.steps(train, epochs=6):
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if step.ends_epoch:
                run.state.right = share_right(accelerator, model, val)
                accelerator.print(f"epoch {step.epoch}: {run.state.right:.4f} of the digits right")
    accelerator.end_training()


if __name__ == "__main__":
    main()
