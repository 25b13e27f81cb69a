"""The scale is a registered buffer."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 24)
        self.head = nn.Linear(24, 3)
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, x):
        features = self.body(x).relu()
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * features.detach().abs().mean()
        return self.head(features / self.scale)


def main():
    samebits.set_random_seed(20)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(19)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with samebits.Run("runs/module_attribute", model=model, optimizer=optimizer) as run:
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
