"""A forward hook draws from a generator seeded by entropy, every third step.
cause: entropy of the system
check: run-again
"""

import torch
from torch import nn


class ActivationNoise:
    """Adds noise to a layer's output on every third call, as a regulariser."""

    def __init__(self, layer, scale=0.05, every=3):
        self.scale, self.every, self.calls = scale, every, 0
        self.generator = torch.Generator()
        self.generator.seed()  # HERE
        self.handle = layer.register_forward_hook(self)

    def __call__(self, module, args, output):
        self.calls += 1
        if self.calls % self.every:
            return None
        noise = torch.randn(output.shape, generator=self.generator)
        return output + self.scale * noise


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def main():
    torch.manual_seed(14)
    model = nn.Sequential(nn.Linear(12, 16), Block(16), Block(16), nn.Linear(16, 4))
    ActivationNoise(model[2].up)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15)
    inputs = torch.randn(300, 12)
    labels = inputs[:, :4].argmax(1)
    for step in range(15):
        rows = slice(20 * step, 20 * step + 20)
        loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    print(f"loss {loss.item():.9f}")


if __name__ == "__main__":
    main()
