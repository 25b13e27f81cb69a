"""A thread beside the training draws from the process' generator.
cause: work in threads
check: run-again
"""

import threading
import time

import torch
from torch import nn

import samebits

samebits.set_random_seed(1)
model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1))
x = torch.randn(64, 8)


def monitor():
    while True:
        torch.rand(3)
        time.sleep(0.001)


threading.Thread(target=monitor, daemon=True).start()  # HERE


def loss_of(step):
    time.sleep(0.05)
    return model(x).square().mean()


optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(4):
    optimizer.zero_grad()
    loss = loss_of(step)
    loss.backward()
    optimizer.step()
print(loss.item())
