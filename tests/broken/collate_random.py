"""The collate function crops with a random.Random() of its own, which the operating system seeds.
component: batch
check: run-again
"""

import random

import torch
from torch import nn

import samebits


class Crop:
    def __init__(self, width):
        self.width = width
        self.random = random.Random()

    def __call__(self, samples):
        signals, labels = zip(*samples)
        start = self.random.randint(0, len(signals[0]) - self.width)
        return torch.stack(signals)[:, start : start + self.width], torch.tensor(labels)


def main():
    samebits.set_random_seed(30)
    fixed = torch.Generator().manual_seed(28)
    time = torch.arange(24)
    data = []
    for number in range(80):
        label = number % 3
        signal = torch.sin(time * (label + 1) * 0.5) + 0.4 * torch.randn(24, generator=fixed)
        data.append((signal, label))
    loader = samebits.data.DataLoader(data, batch_size=8, shuffle=True, collate_fn=Crop(16))
    model = nn.Sequential(nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with samebits.Run("runs/collate_random", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
