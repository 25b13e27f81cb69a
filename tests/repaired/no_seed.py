"""The seed is set before the model is made."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.linspace(-3, 3, 80).unsqueeze(1)
loader = DataLoader(TensorDataset(x, torch.sin(x)), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(3):
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.6f}")

Path("runs/no_seed").mkdir(parents=True, exist_ok=True)
torch.save(model.state_dict(), "runs/no_seed/model.pt")
