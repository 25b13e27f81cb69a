"""The optimizer has both groups from the start."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def main():
    samebits.set_random_seed(44)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(42)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    backbone = nn.Sequential(nn.Linear(8, 24), nn.ReLU()).requires_grad_(False)
    head = nn.Linear(24, 3)
    model = nn.Sequential(backbone, head)
    slow = {"params": list(backbone.parameters()), "lr": 0.002}
    optimizer = torch.optim.Adam([{"params": list(head.parameters()), "lr": 0.02}, slow])

    with samebits.Run("runs/late_param_group", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=4):
            if step.epoch == 1 and step.batch_index == 0:
                backbone.requires_grad_(True)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
