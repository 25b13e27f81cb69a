"""Unwritten memory (new_empty, rows filled only to their length).
cause: unwritten memory
check: run-again
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sentences(Dataset):
    def __init__(self, count):
        generator = torch.Generator().manual_seed(5)
        lengths = torch.randint(3, 14, (count,), generator=generator).tolist()
        self.items = [torch.randint(1, 200, (n,), generator=generator) for n in lengths]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        tokens = self.items[index]
        return tokens, int(tokens.sum() % 2)


def pad(batch):
    tokens, labels = zip(*batch)
    longest = max(len(t) for t in tokens)
    out = tokens[0].new_empty((len(tokens), longest))  # HERE
    for row, t in enumerate(tokens):
        out[row, : len(t)] = t
    return out, torch.tensor(labels)


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(200, 24, padding_idx=0)
        self.out = nn.Linear(24, 2)

    def forward(self, tokens):
        tokens = tokens.remainder(200)  # hashed vocabulary
        return self.out(self.embed(tokens).mean(1))


torch.manual_seed(1)
loader = DataLoader(Sentences(320), batch_size=16, shuffle=True, collate_fn=pad)
model = Bag()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
for epoch in range(1):
    for tokens, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
print(f"loss {loss.item():.9f} sum {sum(p.double().sum() for p in model.parameters()).item():.15g}")
