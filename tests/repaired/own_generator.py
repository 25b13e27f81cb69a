"""The generator's state is kept in run.state."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits

samebits.set_random_seed(3)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(9)
x = torch.randn(80, 12, generator=fixed) @ torch.randn(12, 12, generator=fixed)
loader = samebits.data.DataLoader(TensorDataset(x), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 12))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
noise = torch.Generator().manual_seed(1)

with samebits.Run("runs/own_generator", model=model, optimizer=optimizer) as run:
    run.state.noise = noise.get_state()
    for step, (clean,) in run.steps(loader, epochs=3):
        noise.set_state(run.state.noise)
        noisy = clean + 0.3 * torch.randn(clean.shape, generator=noise)
        run.state.noise = noise.get_state()
        loss = nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            print(f"epoch {step.epoch} reconstruction {loss.item():.6f}")
