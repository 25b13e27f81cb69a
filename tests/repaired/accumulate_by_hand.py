"""Gradients are accumulated in .grad, which Run saves."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits

EVERY = 4


def main():
    samebits.set_random_seed(7)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(5)
    x = torch.randn(96, 8, generator=fixed)
    y = (x @ torch.randn(8, 4, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 20), nn.GELU(), nn.Linear(20, 4))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.2, momentum=0.9)

    with samebits.Run("runs/accumulate_by_hand", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            loss = nn.functional.cross_entropy(model(inputs), labels) / EVERY
            loss.backward()
            run.log(loss=loss)
            if (step.number + 1) % EVERY == 0:
                optimizer.step()
                optimizer.zero_grad()
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item() * EVERY:.6f}")


if __name__ == "__main__":
    main()
