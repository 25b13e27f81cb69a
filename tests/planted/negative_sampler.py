"""Unseeded numpy RandomState in a negative sampler.
cause: entropy of the system
check: run-again
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn


@dataclass
class NegativeSampler:
    items: int
    count: int
    rng: np.random.RandomState = field(default_factory=np.random.RandomState)  # HERE

    def __call__(self, positives):
        negatives = self.rng.choice(self.items, size=(len(positives), self.count))
        clash = negatives == positives[:, None]
        return np.where(clash, (negatives + 1) % self.items, negatives)


class TwoTower(nn.Module):
    def __init__(self, users, items, width=16):
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)

    def score(self, user, item):
        return (self.users(user).unsqueeze(1) * self.items(item)).sum(-1)


def bpr(model, user, positive, negative):
    gap = model.score(user, positive.unsqueeze(1)) - model.score(user, negative)
    return -nn.functional.logsigmoid(gap).mean()


def main():
    torch.manual_seed(0)
    np.random.seed(0)
    users, positives = np.random.randint(0, 50, 960), np.random.randint(0, 80, 960)
    model = TwoTower(50, 80)
    sampler = NegativeSampler(80, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for start in range(0, 960, 64):
        user, positive = users[start : start + 64], positives[start : start + 64]
        negative = torch.from_numpy(sampler(positive))
        loss = bpr(model, torch.from_numpy(user), torch.from_numpy(positive), negative)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9f}")


main()
