"""Python's random, unseeded, inside a compiled function.
cause: a random draw without a seed
check: run-again
"""

import random

import torch
from torch import nn


@torch.compile(backend="aot_eager")
def mixup(x, y):
    low, high = 0.2, 0.8
    weight = random.uniform(low, high)  # HERE
    return weight * x + (1 - weight) * x.flip(0), weight * y + (1 - weight) * y.flip(0)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 8, 5, padding=2)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8 * 16, 3)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x.unsqueeze(1))))
        return self.head(nn.functional.max_pool1d(x, 2).flatten(1))


def main():
    torch.manual_seed(17)
    signals = torch.randn(192, 32)
    classes = nn.functional.one_hot(signals.abs().argmax(1) % 3, 3).float()
    model = Classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(12):
        rows = torch.randperm(192)[:32]
        x, y = mixup(signals[rows], classes[rows])
        loss = -(nn.functional.log_softmax(model(x), dim=1) * y).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9f}")


if __name__ == "__main__":
    main()
