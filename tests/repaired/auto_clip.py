"""The norms are kept in run.state."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def main():
    samebits.set_random_seed(36)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(34)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 1, generator=fixed)) ** 2
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    with samebits.Run("runs/auto_clip", model=model, optimizer=optimizer) as run:
        run.state.norms = []
        for step, (inputs, targets) in run.steps(loader, epochs=3):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            norms = run.state.norms
            norms.append(nn.utils.get_total_norm([p.grad for p in model.parameters()]).item())
            limit = sorted(norms)[len(norms) // 4]
            nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
