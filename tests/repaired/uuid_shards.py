"""The data files are numbered."""

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
        for number in range(10):
            torch.save(torch.randn(8, 4, generator=fixed), folder / f"part-{number:03d}.pt")
        x = torch.cat([torch.load(part) for part in sorted(folder.glob("part-*.pt"))])

    y = (x[:, 0] > x[:, 1]).long()
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with samebits.Run("runs/uuid_shards", model=model, optimizer=optimizer) as run:
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
