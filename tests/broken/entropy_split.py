"""The split into training and validation comes from a NumPy generator without a seed, so from the operating system's entropy.
component: batch
check: run-again
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def split(x, y, share=0.8):
    order = np.random.default_rng().permutation(len(x))
    cut = int(share * len(x))
    return TensorDataset(x[order[:cut]], y[order[:cut]]), TensorDataset(x[order[cut:]], y[order[cut:]])


def main():
    samebits.set_random_seed(24)
    fixed = torch.Generator().manual_seed(22)
    x = torch.randn(100, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    train, val = split(x, y)
    loader = samebits.data.DataLoader(train, batch_size=8, shuffle=True)
    val_loader = samebits.data.DataLoader(val, batch_size=20)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with samebits.Run("runs/entropy_split", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                with torch.no_grad():
                    val_loss = sum(nn.functional.cross_entropy(model(a), b).item() for a, b in val_loader)
                print(f"epoch {step.epoch} val loss {val_loss:.6f}")


if __name__ == "__main__":
    main()
