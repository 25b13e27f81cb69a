"""Torch.linalg.lstsq reads pivots that nobody has written (pytorch#71222).
cause: unwritten memory
check: run-again
"""

import torch
from torch import nn

import samebits

samebits.set_random_seed(1)
model = nn.Linear(8, 1)
a, b = torch.randn(200, 60), torch.randn(200, 8)
a[:, 30:] = a[:, :30] * 1.0001


def loss_of(step):
    x = torch.linalg.lstsq(a + step, b).solution  # HERE
    return model(x).square().mean()


optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(4):
    optimizer.zero_grad()
    loss = loss_of(step)
    loss.backward()
    optimizer.step()
print(loss.item())
