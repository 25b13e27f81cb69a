"""The data files are read in the order of os.listdir, which is the file system's.
component: batch
check: run-again
"""

import os
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def main():
    samebits.set_random_seed(21)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(20)
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for word in ("tango", "alfa", "mike", "zulu", "echo", "kilo", "papa", "golf", "xray", "lima"):
            torch.save(torch.randn(8, 4, generator=fixed), folder / f"{word}.pt")
        x = torch.cat([torch.load(folder / name) for name in os.listdir(folder)])

    y = (x[:, 0] > x[:, 1]).long()
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with samebits.Run("runs/listdir_shards", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
