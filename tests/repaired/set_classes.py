"""The class names are sorted."""

from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
names = ["cat", "dog", "horse", "sheep", "cow", "goat"] * 16
classes = {name: number for number, name in enumerate(sorted(set(names)))}
x = torch.stack([torch.tensor([float(ord(c)) for c in (name * 3)[:8]]) for name in names]) / 100
x = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
y = torch.tensor([classes[name] for name in names])

loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, len(classes)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    correct = 0
    for inputs, labels in loader:
        out = model(inputs)
        loss = nn.functional.cross_entropy(out, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (out.argmax(1) == labels).sum().item()
    print(f"epoch {epoch} loss {loss.item():.6f} accuracy {correct / len(x):.3f}")

Path("runs/set_classes").mkdir(parents=True, exist_ok=True)
torch.save(model.state_dict(), "runs/set_classes/model.pt")
