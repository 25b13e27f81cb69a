"""Training stops after a number of seconds, so how many steps it has depends on the speed of the machine.
component: steps
check: run-again
"""

import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits

samebits.set_random_seed(27)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(25)
x = torch.randn(80, 8, generator=fixed)
y = torch.tanh(x @ torch.randn(8, 2, generator=fixed))
loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
deadline = time.monotonic() + 0.7

with samebits.Run("runs/time_budget", model=model, optimizer=optimizer) as run:
    for step, (inputs, targets) in run.steps(loader, epochs=500):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if time.monotonic() > deadline:
            run.stop()
    with torch.no_grad():
        print(f"loss {nn.functional.mse_loss(model(x), y).item():.6f}")
