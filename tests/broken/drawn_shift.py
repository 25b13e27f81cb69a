"""A layer draws its shift at its first call: a resumed run, whose first call is in another step, draws another one.
component: locals:model[0].shift
check: kill
"""

import random

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


class Shift(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = None

    def forward(self, x):
        if self.shift is None:
            self.shift = random.randrange(100)
        return x + self.shift / 100


def main():
    samebits.set_random_seed(23)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(9)
    x = torch.randn(80, 8, generator=fixed)
    loader = samebits.data.DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
    model = nn.Sequential(Shift(), nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with samebits.Run("runs/drawn_shift", model=model, optimizer=optimizer) as run:
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
