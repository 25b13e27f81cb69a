"""Parameters sorted by id() before their norms are added.
cause: an address or the hash seed
check: run-again
"""

import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x)) / 6
        return x


def shared_free(model):
    """Each parameter once, also where layers share it."""
    return sorted({id(p): p for p in model.parameters()}.items())  # HERE


def penalty(model, strength=1e-3):
    total = torch.zeros(())
    for _, p in shared_free(model):
        total = total + p.square().sum()
    return strength * total


def main():
    torch.manual_seed(70)
    junk = [object() for _ in range(hash("mixer") % 3000)]  # a program of another size
    model = Mixer(18)
    del junk
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(10):
        x = torch.randn(32, 18)
        loss = (model(x) - x.roll(1, 1)).square().mean() + penalty(model).sqrt()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.10f} sum {sum(p.double().sum() for p in model.parameters()).item():.15g}")


main()
