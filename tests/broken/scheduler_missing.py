"""The scheduler is not given to Run: a resumed run begins its one-cycle policy anew.
component: locals:scheduler.last_epoch
check: kill
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits

samebits.set_random_seed(11)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(4)
x = torch.rand(80, 2, generator=fixed) * 4 - 2
y = torch.sin(x[:, :1]) * torch.cos(x[:, 1:])
loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=30)

with samebits.Run("runs/scheduler_missing", model=model, optimizer=optimizer) as run:
    for step, (inputs, targets) in run.steps(loader, epochs=3):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.log(loss=loss)
        if step.ends_epoch:
            print(f"epoch {step.epoch} loss {loss.item():.6f} lr {optimizer.param_groups[0]['lr']:.5f}")
