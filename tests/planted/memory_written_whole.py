"""Python's random, unseeded, fills rows of a torch.empty that is written whole (written after reading the tracer).
cause: a random draw
check: run-again
"""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader


def shake(row):
    return row * (1.0 + 0.1 * random.random())  # HERE


def collate(rows):
    out = torch.empty(len(rows), 12)
    for target, row in zip(out, rows):
        target.copy_(shake(row))
    return out


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(12, 6)
        self.outer = nn.Linear(6, 12)

    def forward(self, x):
        return self.outer(torch.relu(self.inner(x)))


torch.manual_seed(110)
rows = list(torch.randn(160, 12))
loader = DataLoader(rows, batch_size=16, shuffle=True, collate_fn=collate)
model = Coder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    loss = (model(x) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.9f}")
