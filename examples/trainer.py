"""Handwritten digits with `Trainer.fit`: augmentation, averaged weights, plateau, early stopping; killed anywhere, resumed.

python examples/trainer.py                  # train; start it again after a kill and it goes on
samebits verify examples/trainer.py         # prove that it ends with the same bits

What was chosen, and where to change it: images are shifted by up to one pixel and get noise, drawn from the global
generators as torchvision's transforms do; two batches of 32 make one step of the optimizer, clipped to norm 1; what is
validated and tested is a moving average of the weights; the learning rate falls when the validation loss stands still
for two epochs, and training stops after five. The CSV log has each epoch once, however often the process was killed.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn

import samebits
from samebits.callbacks import CSVLogger, EarlyStopping, ReduceLROnPlateau


class Augmented(torch.utils.data.Dataset):
    """Images that are shifted and noisy, another way each time they are asked for."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        down, right = torch.randint(-1, 2, (2,)).tolist()
        image = torch.roll(self.images[index], (down, right), (1, 2))
        return image + 0.1 * torch.randn(image.shape), self.labels[index]


def accuracy(output, target):
    return (output.argmax(1) == target).float().mean()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--run-dir", default="runs/trainer")
    args = parser.parse_args()

    samebits.set_random_seed(1)
    samebits.enable_op_determinism(across="machines")

    images, labels = load_digits(return_X_y=True)
    images = torch.as_tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    labels = torch.as_tensor(labels)
    train = Augmented(images[:1200], labels[:1200])
    val = torch.utils.data.TensorDataset(images[1200:1500], labels[1200:1500])
    test = torch.utils.data.TensorDataset(images[1500:], labels[1500:])
    loader = samebits.data.DataLoader(train, batch_size=32, shuffle=True, num_workers=args.workers)
    val_loader = samebits.data.DataLoader(val, batch_size=100)
    test_loader = samebits.data.DataLoader(test, batch_size=100)

    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(512, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    run_dir = Path(args.run_dir)
    trainer = samebits.Trainer(
        model,
        nn.functional.cross_entropy,
        optimizer,
        metrics={"accuracy": accuracy},
        accumulate=2,
        clip_norm=1.0,
        ema=0.98,
        callbacks=[
            ReduceLROnPlateau(optimizer, factor=0.3, patience=2),
            EarlyStopping(patience=5),
            CSVLogger(run_dir / "log.csv"),
        ],
    )
    history = trainer.fit(loader, args.epochs, validation_data=val_loader, run_dir=run_dir).history
    best = min(history["val_loss"])
    print(f"{len(history['val_loss'])} epochs, best val loss {best:.4f}")
    print({name: round(value, 4) for name, value in trainer.evaluate(test_loader).items()})


if __name__ == "__main__":
    main()
