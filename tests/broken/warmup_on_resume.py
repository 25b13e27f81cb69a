"""A resumed run warms its learning rate up again.
component: locals:warmup_steps
check: kill
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits

LR = 0.1

samebits.set_random_seed(14)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(13)
x = torch.randn(80, 6, generator=fixed)
y = torch.tanh(x @ torch.randn(6, 2, generator=fixed))
loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)

with samebits.Run("runs/warmup_on_resume", model=model, optimizer=optimizer) as run:
    warmup_steps = iter(range(1, 6)) if run.resumed else iter(())
    for step, (inputs, targets) in run.steps(loader, epochs=3):
        optimizer.param_groups[0]["lr"] = LR * next(warmup_steps, 5) / 5
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            print(f"epoch {step.epoch} loss {loss.item():.6f}")
