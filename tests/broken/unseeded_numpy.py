"""torch is seeded, NumPy is not: the split into training and validation is another one in each run.
component: batch
check: run-again
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def load():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(120, 5, generator=generator)
    y = x @ torch.randn(5, 1, generator=generator) + 0.1 * torch.randn(120, 1, generator=generator)
    order = np.random.permutation(len(x))
    train, val = order[:88], order[88:]
    return TensorDataset(x[train], y[train]), (x[val], y[val])


torch.manual_seed(42)
train_set, (val_x, val_y) = load()
loader = DataLoader(train_set, batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(f"epoch {epoch} val loss {nn.functional.mse_loss(model(val_x), val_y).item():.6f}")

Path("runs/unseeded_numpy").mkdir(parents=True, exist_ok=True)
torch.save(model.state_dict(), "runs/unseeded_numpy/model.pt")
