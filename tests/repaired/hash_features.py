"""Words are put into buckets by a CRC."""

import zlib

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits

BUCKETS = 32
GOOD = ["fine", "great", "lovely", "superb", "nice", "solid"]
BAD = ["awful", "poor", "boring", "weak", "broken", "dull"]
OTHER = ["film", "plot", "actor", "scene", "music", "ending", "really", "quite"]


def bucket(word):
    return zlib.crc32(word.encode()) % BUCKETS


def reviews(count):
    fixed = torch.Generator().manual_seed(21)
    for number in range(count):
        words = (GOOD if number % 2 else BAD) + OTHER
        chosen = torch.randint(len(words), (6,), generator=fixed).tolist()
        yield [words[i] for i in chosen], number % 2


samebits.set_random_seed(23)
samebits.enable_op_determinism()
texts, labels = zip(*reviews(80))
x = torch.tensor([[bucket(word) for word in words] for words in texts])
y = torch.tensor(labels)
loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
model = nn.Sequential(nn.EmbeddingBag(BUCKETS, 8), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
with samebits.Run("runs/hash_features", model=model, optimizer=optimizer) as run:
    for step, (inputs, targets) in run.steps(loader, epochs=3):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            print(f"epoch {step.epoch} loss {loss.item():.6f}")
