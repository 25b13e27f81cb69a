"""Index_put accumulate (backward of indexing) on several threads.
cause: a sum in no order
check: run-again
"""

import torch
from torch import nn


class TagEncoder(nn.Module):
    """Mean of tag vectors; few tags are used very often."""

    def __init__(self, tags, width):
        super().__init__()
        self.table = nn.Parameter(torch.randn(tags, width) * 0.1)

    def forward(self, ids):
        return self.table[ids].mean(dim=1)  # HERE


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.tags = TagEncoder(12, 48)
        self.head = nn.Sequential(nn.Linear(48, 16), nn.GELU(), nn.Linear(16, 1))

    def forward(self, ids):
        return self.head(self.tags(ids)).squeeze(-1)


def batches(count, size):
    generator = torch.Generator().manual_seed(11)
    for _ in range(count):
        ids = torch.randint(0, 12, (size, 24), generator=generator)
        yield ids, (ids.float().mean(1) > 5.5).float()


def main():
    torch.manual_seed(3)
    model = Recommender()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for ids, target in batches(12, 512):
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids), target)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9f} sum {sum(p.double().sum() for p in model.parameters()).item():.15g}")


if __name__ == "__main__":
    main()
