"""The names are collected in a dict, which keeps their order."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(8, 12)
        self.lower = nn.Linear(12, 12)
        self.middle = nn.Linear(12, 12)
        self.upper = nn.Linear(12, 12)
        self.head = nn.Linear(12, 3)

    def forward(self, x):
        for layer in (self.stem, self.lower, self.middle, self.upper):
            x = layer(x).relu()
        return self.head(x)


def layerwise_groups(model, lr, decay=0.7):
    names = {name.split(".")[0]: None for name, _ in model.named_parameters()}
    return [
        {"params": list(getattr(model, name).parameters()), "lr": lr * decay**depth}
        for depth, name in enumerate(names)
    ]


def main():
    samebits.set_random_seed(26)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(24)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(layerwise_groups(model, lr=0.1), momentum=0.9)
    with samebits.Run("runs/layer_set", model=model, optimizer=optimizer) as run:
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
