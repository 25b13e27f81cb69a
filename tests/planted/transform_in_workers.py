"""A transform draws from numpy default_rng() in loader workers.
cause: entropy of the system
check: run-again
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Crop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        rng = np.random.default_rng()  # HERE
        top, left = rng.integers(0, image.shape[-1] - self.size, 2)
        return image[:, top : top + self.size, left : left + self.size]


class Digits(Dataset):
    def __init__(self, count, transform):
        rng = np.random.default_rng(33)
        self.images = rng.random((count, 1, 14, 14), dtype=np.float32)
        self.labels = rng.integers(0, 4, count)
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.transform(self.images[index])
        return torch.from_numpy(image.copy()), int(self.labels[index])


def build():
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(96, 4)
    )


def main():
    torch.manual_seed(30)
    loader = DataLoader(Digits(160, Crop(10)), batch_size=16, shuffle=True, num_workers=2)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9f}")


if __name__ == "__main__":
    main()
