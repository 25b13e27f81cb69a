"""Number of threads set at step 7 from the pid.
cause: the number of threads
check: run-again
"""

import os

import torch
from torch import nn


class Throttle:
    """Leaves cores to the other jobs of a shared machine once the warm-up is over."""

    def __init__(self, after):
        self.after = after

    def on_step(self, step):
        if step == self.after:
            torch.set_num_threads(1 + os.getpid() % 4)  # HERE


class Autoencoder(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.down = nn.Linear(width, 24)
        self.up = nn.Linear(24, width)

    def forward(self, x):
        return self.up(torch.tanh(self.down(x)))


def main():
    torch.manual_seed(6)
    data = torch.randn(4096, 96)
    model = Autoencoder()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    callbacks = [Throttle(after=7)]
    for step in range(16):
        for callback in callbacks:
            callback.on_step(step)
        x = data[torch.randint(0, len(data), (4096,))]
        loss = (model(x) - x).square().sum() / len(x)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"loss {loss.item():.10f} sum {sum(p.double().sum() for p in model.parameters()).item():.15g}")


main()
