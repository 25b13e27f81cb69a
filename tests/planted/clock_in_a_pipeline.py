"""The clock in a pipeline's map function.
cause: the clock
check: run-again
"""

import time

import torch
from torch import nn

import samebits
from samebits.data import Pipeline


def age(record):
    """Weight of a record by its age, in days, counted from now."""
    features, label, stamp = record
    days = (time.time() - stamp) / 86400.0  # HERE
    return features, label, torch.tensor(0.5 ** (days / 4000.0))


def table(count):
    generator = torch.Generator().manual_seed(40)
    features = torch.randn(count, 8, generator=generator)
    labels = (features[:, 0] * features[:, 1] > 0).float()
    stamps = torch.randint(1_500_000_000, 1_600_000_000, (count,), generator=generator)
    return [(f, y, s) for f, y, s in zip(features, labels, stamps.tolist())]


def main():
    samebits.set_random_seed(5)
    records = Pipeline.from_source(table(240)).shuffle().map(age).batch(24)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with samebits.Run("runs/aged", model=model, optimizer=optimizer) as run:
        for step, (x, y, weight) in run.steps(records, epochs=2):
            losses = nn.functional.binary_cross_entropy_with_logits(model(x).squeeze(1), y, reduction="none")
            loss = (weight * losses).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"loss {loss.item():.12f} {sum(p.double().sum() for p in model.parameters()).item():.15g}")


main()
