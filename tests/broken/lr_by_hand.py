"""The learning rate is halved by hand in a local variable, so a resumed run has the first one again.
component: locals:lr
check: kill
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def set_lr(optimizer, lr):
    for group in optimizer.param_groups:
        group["lr"] = lr


def main():
    samebits.set_random_seed(15)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(14)
    x = torch.randn(64, 1, 8, generator=fixed)
    y = (x.mean((1, 2)) > 0).long()
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Conv1d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    lr = 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

    with samebits.Run("runs/lr_by_hand", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=4):
            set_lr(optimizer, lr)
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} lr {lr} loss {loss.item():.6f}")
                lr /= 2


if __name__ == "__main__":
    main()
