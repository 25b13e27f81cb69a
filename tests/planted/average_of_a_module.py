"""An average kept as a plain attribute of a module is not in any commit.
cause: state that the resume did not restore
check: kill-mid-epoch
"""

import torch
from torch import nn

import samebits


class CenteredHead(nn.Module):
    """Subtracts a slow average of what came in before."""

    def __init__(self, width, classes, momentum=0.9):
        super().__init__()
        self.momentum = momentum
        self.center = torch.zeros(width)  # HERE
        self.out = nn.Linear(width, classes)

    def forward(self, x):
        if self.training:
            mean = x.detach().mean(0)
            self.center = self.momentum * self.center + (1 - self.momentum) * mean  # HERE
        return self.out(x - self.center)


def main():
    samebits.set_random_seed(60)
    samebits.enable_op_determinism()
    inputs = torch.randn(320, 10) + 0.5
    data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0.5).long())
    loader = samebits.data.DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), CenteredHead(16, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with samebits.Run("runs/centered", model=model, optimizer=optimizer) as run:
        for step, (x, y) in run.steps(loader, epochs=2):
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.9f}")


main()
