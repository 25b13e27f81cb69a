"""A layer's seed from hash() of its name.
cause: an address or the hash seed
check: run-again
"""

import torch
from torch import nn


def init(model):
    """Own stream for each layer, so that a new one moves no other."""
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            nn.init.zeros_(parameter)
            continue
        generator = torch.Generator().manual_seed(hash(name) & 0x7FFFFFFF)  # HERE
        nn.init.kaiming_uniform_(parameter, generator=generator)


class Unit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.value = nn.Linear(width, width)

    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * self.value(x)


def main():
    torch.manual_seed(100)
    model = nn.Sequential(nn.Linear(5, 12), Unit(12), nn.Linear(12, 1))
    init(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(8):
        x = torch.randn(48, 5)
        loss = (model(x) - x.amax(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9f}")


main()
