"""The learning rate decays with the steps."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits

samebits.set_random_seed(25)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(23)
x = torch.randn(80, 8, generator=fixed)
y = torch.sin(x @ torch.randn(8, 1, generator=fixed))
loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

with samebits.Run("runs/wall_clock_lr", model=model, optimizer=optimizer) as run:
    for step, (inputs, targets) in run.steps(loader, epochs=3):
        optimizer.param_groups[0]["lr"] = 0.1 * 0.5 ** (step.number / 20)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            print(f"epoch {step.epoch} loss {loss.item():.6f}")
