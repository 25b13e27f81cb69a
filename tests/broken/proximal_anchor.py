"""The weights at the start of the epoch, to which a penalty pulls, are a local variable that a resumed run fills with others.
component: locals:anchor
check: kill
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def weights_of(model):
    return [p.detach().clone() for p in model.parameters()]


samebits.set_random_seed(47)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(45)
x = torch.randn(80, 8, generator=fixed)
y = torch.sin(x @ torch.randn(8, 1, generator=fixed))
loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

with samebits.Run("runs/proximal_anchor", model=model, optimizer=optimizer) as run:
    anchor = weights_of(model)
    for step, (inputs, targets) in run.steps(loader, epochs=3):
        loss = nn.functional.mse_loss(model(inputs), targets)
        pull = sum((p - a).square().sum() for p, a in zip(model.parameters(), anchor))
        optimizer.zero_grad()
        (loss + 0.1 * pull).backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            anchor = weights_of(model)
            print(f"epoch {step.epoch} loss {loss.item():.6f}")
