"""As many inner steps as fit into a time budget.
cause: the clock
check: run-again
"""

import time

import torch
from torch import nn


class Solver(nn.Module):
    """Fixed point iteration, cut off by the time that it may take."""

    def __init__(self, width, budget):
        super().__init__()
        self.map = nn.Linear(width, width)
        self.budget = budget

    def forward(self, x):
        z = torch.zeros_like(x)
        stop = time.perf_counter() + self.budget  # HERE
        for _ in range(500):
            z = torch.tanh(self.map(z) + x)
            if time.perf_counter() > stop:  # HERE
                break
        return z


def main():
    torch.manual_seed(80)
    model = nn.Sequential(nn.Linear(6, 16), Solver(16, budget=0.004), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(10):
        x = torch.randn(64, 6)
        loss = (model(x) - x.prod(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9f}")


main()
