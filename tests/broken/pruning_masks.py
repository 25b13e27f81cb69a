"""The masks of pruned weights are made after the first epoch and kept in a local variable, which is empty after a resume.
component: locals:masks
check: kill
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def smallest_half(model):
    return {name: (p.abs() > p.abs().median()).float() for name, p in model.named_parameters() if p.dim() > 1}


def main():
    samebits.set_random_seed(40)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(38)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 30), nn.ReLU(), nn.Linear(30, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with samebits.Run("runs/pruning_masks", model=model, optimizer=optimizer) as run:
        masks = {}
        for step, (inputs, labels) in run.steps(loader, epochs=4):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step.number == 7:
                masks = {name: mask.detach() for name, mask in smallest_half(model).items()}
            with torch.no_grad():
                for name, mask in masks.items():
                    model.get_parameter(name).mul_(mask)
            run.log(loss=loss)
            if step.ends_epoch:
                zeros = sum((p == 0).sum().item() for p in model.parameters())
                print(f"epoch {step.epoch} loss {loss.item():.6f} zeros {zeros}")


if __name__ == "__main__":
    main()
