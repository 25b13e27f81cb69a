"""The input normaliser keeps its running mean and variance in Python floats that are not saved.
component: locals:normalizer.mean
check: kill
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


class RunningNorm:
    def __init__(self):
        self.mean = 0.0
        self.var = 1.0
        self.count = 0

    def __call__(self, x):
        self.count += 1
        rate = max(1 / self.count, 0.05)
        self.mean += rate * (x.mean().item() - self.mean)
        self.var += rate * (x.var().item() - self.var)
        return (x - self.mean) / (self.var + 1e-6) ** 0.5


samebits.set_random_seed(19)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(18)
x = 5 + 3 * torch.randn(80, 6, generator=fixed)
y = torch.sin(x.sum(1, keepdim=True) / 5)
loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
normalizer = RunningNorm()

with samebits.Run("runs/running_norm", model=model, optimizer=optimizer) as run:
    for step, (inputs, targets) in run.steps(loader, epochs=3):
        loss = nn.functional.mse_loss(model(normalizer(inputs)), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            print(f"epoch {step.epoch} loss {loss.item():.6f}")
