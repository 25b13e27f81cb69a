"""The script of `samebits verify --demo`: a small network learns the direction of stripes.

It is a training as any other, with a loader, dropout and a validation. verify runs a copy of this file.
"""

import torch
import torch.nn.functional as F
from torch import nn

import samebits

CLASSES, IMAGES, TEST_IMAGES, SIZE = 4, 384, 128, 8
Images = torch.utils.data.TensorDataset


def stripes(key: torch.Tensor, count: int) -> Images:
    """Returns noisy images of stripes, and their directions; shapes (count, 1, 8, 8) and (count,)."""
    labels = torch.arange(count) % CLASSES
    down, right = torch.arange(SIZE)[:, None], torch.arange(SIZE)[None, :]
    places = torch.stack([down + 0 * right, right + 0 * down, down + right, SIZE + down - right])
    images = (places % 4 < 2).float()[labels, None]
    return Images(images + samebits.random.normal(key, tuple(images.shape)), labels)


@torch.no_grad()
def accuracy(model: nn.Module, loader: samebits.data.DataLoader) -> float:
    """Returns the part of the images whose direction the model finds."""
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in loader)
    model.train()
    return right / TEST_IMAGES


def main() -> None:
    """Trains for 48 steps, and keeps the best accuracy."""
    samebits.set_random_seed(1)
    samebits.enable_op_determinism(across="machines")
    train_key, test_key = samebits.random.split(samebits.random.key(7))
    loader = samebits.data.DataLoader(stripes(train_key, IMAGES), batch_size=32, shuffle=True)
    test_loader = samebits.data.DataLoader(stripes(test_key, TEST_IMAGES), batch_size=64)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, CLASSES),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    with samebits.Run("run", model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=4):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                run.state.best = max(run.state.get("best", 0.0), accuracy(model, test_loader))
                print(f"epoch {step.epoch}: best accuracy {run.state.best:.3f}")


if __name__ == "__main__":
    main()
