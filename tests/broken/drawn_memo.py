"""The weight of each class is drawn once and kept by a cache, which no commit has: a resumed run draws others.
component: loss
check: kill
"""

import functools
import random

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


@functools.lru_cache
def scale(label):
    """The weight of a class, drawn once."""
    return 0.5 + random.expovariate(1.0)


def main():
    samebits.set_random_seed(23)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(9)
    x = torch.randn(80, 8, generator=fixed)
    loader = samebits.data.DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with samebits.Run("runs/drawn_memo", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            weights = torch.tensor([scale(0), scale(1)])
            loss = nn.functional.cross_entropy(model(inputs), labels, weights)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
