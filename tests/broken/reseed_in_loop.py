"""A function that the loop calls seeds NumPy from the operating system before it draws.
component: loss
check: run-again
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def cutout(x, width=3):
    np.random.seed()
    start = np.random.randint(0, x.shape[1] - width + 1)
    x = x.clone()
    x[:, start : start + width] = 0
    return x


samebits.set_random_seed(29)
fixed = torch.Generator().manual_seed(27)
x = torch.randn(80, 16, generator=fixed)
y = (x @ torch.randn(16, 3, generator=fixed)).argmax(1)
loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with samebits.Run("runs/reseed_in_loop", model=model, optimizer=optimizer) as run:
    for step, (inputs, labels) in run.steps(loader, epochs=3):
        loss = nn.functional.cross_entropy(model(cutout(inputs)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            print(f"epoch {step.epoch} loss {loss.item():.6f}")
