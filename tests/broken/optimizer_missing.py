"""The optimizer is not given to Run: a resumed run starts with empty Adam moments.
component: optimizer
check: kill
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits

samebits.set_random_seed(11)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(2)
x = torch.randn(80, 8, generator=fixed)
y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), samebits.nn.Dropout(0.2), nn.Linear(24, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

with samebits.Run("runs/optimizer_missing", model=model) as run:
    for step, (inputs, labels) in run.steps(loader, epochs=3):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            model.eval()
            with torch.no_grad():
                print(f"epoch {step.epoch} accuracy {(model(x).argmax(1) == y).float().mean().item():.4f}")
            model.train()
