"""Handwritten digits, from images to a test accuracy, as a training script that can be killed anywhere.

python examples/digits.py                   # train; start it again after a kill and it goes on
samebits verify examples/digits.py          # prove that it ends with the same bits; --device cuda for those of a GPU
"""

import argparse
import copy

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

import samebits


class Digits(torch.utils.data.Dataset):
    """Real 8x8 images (they ship with scikit-learn); the augmentation draws from the global generators."""

    def __init__(self, images, labels, augment=False):
        self.images = torch.as_tensor(images, dtype=torch.float32)[:, None] / 16
        self.labels = torch.as_tensor(labels)
        self.augment = augment

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, label = self.images[index], self.labels[index]
        if self.augment:
            angle = np.random.uniform(-0.25, 0.25)
            shift = torch.rand(2) * 0.5 - 0.25
            cos, sin = np.cos(angle), np.sin(angle)
            turn = torch.tensor([[cos, -sin, shift[0]], [sin, cos, shift[1]]], dtype=torch.float32)
            grid = F.affine_grid(turn[None], [1, 1, 8, 8], align_corners=False)
            image = F.grid_sample(image[None], grid, align_corners=False)[0]
            image = image + 0.05 * torch.randn(image.shape)
        return image, label


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10)
        )

    def forward(self, x):
        return self.head(self.features(x))


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    loss = correct = count = 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = model(x)
        loss += F.cross_entropy(out, y, reduction="sum").item()
        correct += (out.argmax(1) == y).sum().item()
        count += len(y)
    model.train()
    return loss / count, correct / count


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--patience", type=int, default=3)
    parser.add_argument("--run-dir", default="runs/digits")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: other bits, the same from run to run")
    args = parser.parse_args()

    samebits.set_random_seed(1)
    samebits.enable_op_determinism(across="machines")

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8)
    images, test_images, labels, test_labels = train_test_split(images, labels, test_size=300, random_state=0)
    images, val_images, labels, val_labels = train_test_split(images, labels, test_size=300, random_state=0)
    train = Digits(images, labels, augment=True)
    loader = samebits.data.DataLoader(train, batch_size=64, shuffle=True, num_workers=args.workers)
    val_loader = samebits.data.DataLoader(Digits(val_images, val_labels), batch_size=100)
    test_loader = samebits.data.DataLoader(Digits(test_images, test_labels), batch_size=100)

    model = Net().to(args.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.3, patience=1)

    with samebits.Run(args.run_dir, model=model, optimizer=optimizer, scheduler=scheduler) as run:
        for step, (x, y) in run.steps(loader, epochs=args.epochs):
            loss = F.cross_entropy(model(x.to(args.device)), y.to(args.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)

            if step.ends_epoch:
                val_loss, val_accuracy = evaluate(model, val_loader, args.device)
                scheduler.step(val_loss)
                lr = optimizer.param_groups[0]["lr"]
                print(
                    f"epoch {step.epoch:2d}  val loss {val_loss:.4f}  val accuracy {val_accuracy:.4f}  lr {lr:.1e}"
                )
                if val_loss < run.state.get("best_loss", float("inf")):
                    run.state.best_loss, run.state.best_epoch = val_loss, step.epoch
                    run.state.best_weights = copy.deepcopy(model.state_dict())
                elif step.epoch - run.state.best_epoch >= args.patience:
                    run.stop()

        model.load_state_dict(run.state.best_weights)
        test_loss, test_accuracy = evaluate(model, test_loader, args.device)
        print(
            f"best epoch {run.state.best_epoch}: test loss {test_loss:.4f}, test accuracy {test_accuracy:.4f}"
        )


if __name__ == "__main__":
    main()
