"""Mixup draws from a generator made from the step number."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def main():
    samebits.set_random_seed(4)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(10)
    x = torch.randn(80, 8, generator=fixed)
    y = nn.functional.one_hot((x @ torch.randn(8, 3, generator=fixed)).argmax(1), 3).float()
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with samebits.Run("runs/mixup_rng", model=model, optimizer=optimizer) as run:
        for step, (inputs, targets) in run.steps(loader, epochs=3):
            rng = np.random.default_rng([0, step.number])
            share = float(rng.beta(0.4, 0.4))
            inputs = share * inputs + (1 - share) * inputs.flip(0)
            targets = share * targets + (1 - share) * targets.flip(0)
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
