"""The best weights are copied."""

import copy

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits

samebits.set_random_seed(38)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(36)
x = torch.randn(140, 10, generator=fixed)
y = 0.3 * x[:, :1] + torch.randn(140, 1, generator=fixed)
loader = samebits.data.DataLoader(TensorDataset(x[:80], y[:80]), batch_size=8, shuffle=True)
val_x, val_y = x[80:], y[80:]
model = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

with samebits.Run("runs/best_not_copied", model=model, optimizer=optimizer) as run:
    run.state.best = float("inf")
    for step, (inputs, targets) in run.steps(loader, epochs=4):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            with torch.no_grad():
                val_loss = nn.functional.mse_loss(model(val_x), val_y).item()
            if val_loss < run.state.best:
                run.state.best = val_loss
                run.state.best_weights = copy.deepcopy(model.state_dict())

    best = copy.deepcopy(model)
    best.load_state_dict(run.state.best_weights)
    with torch.no_grad():
        print(f"best {run.state.best:.6f}, loaded {nn.functional.mse_loss(best(val_x), val_y).item():.6f}")
