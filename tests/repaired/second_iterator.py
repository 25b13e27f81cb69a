"""The second loader is given to Run, which resumes it where it stood."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def main():
    samebits.set_random_seed(37)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(35)
    x = torch.randn(400, 6, generator=fixed)
    y = (x[:80] @ torch.randn(6, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x[:80], y), batch_size=8, shuffle=True)
    pool = samebits.data.DataLoader(x[80:], batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with samebits.Run("runs/second_iterator", model=model, optimizer=optimizer, pool=pool) as run:
        unlabelled = iter(pool)
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            extra = next(unlabelled)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            chances = model(extra).softmax(1)
            loss = loss - 0.1 * (chances * chances.log()).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
