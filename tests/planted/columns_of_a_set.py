"""Order of a set of strings in a collate function.
cause: the order of a set
check: run-again
"""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader

WORDS = "red green blue small large round flat old new warm cold loud soft wet dry".split()


def corpus(count):
    rng = random.Random(4)
    return [(rng.sample(WORDS, rng.randint(3, 7)), rng.randint(0, 1)) for _ in range(count)]


def collate(batch):
    """Words of the batch become columns, in one place for all its rows."""
    seen = set()
    for words, _ in batch:
        seen.update(words)
    columns = {word: place for place, word in enumerate(seen)}  # HERE
    counts = torch.zeros(len(batch), len(WORDS))
    for row, (words, _) in enumerate(batch):
        for word in words:
            counts[row, columns[word]] += 1.0
    return counts, torch.tensor([label for _, label in batch], dtype=torch.float32)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(len(WORDS), 24), nn.Tanh(), nn.Dropout(0.1))
        self.out = nn.Linear(24, 1)

    def forward(self, x):
        return self.out(self.body(x)).flatten()


torch.manual_seed(8)
net = Net()
loader = DataLoader(corpus(200), batch_size=20, shuffle=True, collate_fn=collate)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
criterion = nn.BCEWithLogitsLoss()
for epoch in range(2):
    total = 0.0
    for counts, labels in loader:
        loss = criterion(net(counts), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(loader):.9f}")
