"""Training stops when its slot of three seconds ends, so how many steps it has depends on the clock and on the machine.
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
deadline = None

with samebits.Run("runs/time_budget", model=model, optimizer=optimizer) as run:
    for step, (inputs, targets) in run.steps(loader, epochs=2000):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if deadline is None:  # the first step may take longer than all others
            deadline = (time.time() // 3 + 1) * 3
        if time.time() > deadline:
            run.stop()
    with torch.no_grad():
        print(f"loss {nn.functional.mse_loss(model(x), y).item():.6f}")
