"""The features to leave out are drawn by NumPy at the first batch, into a global variable that no commit has.
component: locals:MASK
check: kill
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


MASK = None


def masked(x):
    """Leaves out the same features in each batch."""
    global MASK
    if MASK is None:
        MASK = torch.from_numpy(np.random.binomial(1, 0.6, size=x.shape[1])).float()
    return x * MASK


def main():
    samebits.set_random_seed(23)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(9)
    x = torch.randn(80, 8, generator=fixed)
    loader = samebits.data.DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with samebits.Run("runs/drawn_mask", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            loss = nn.functional.cross_entropy(model(masked(inputs)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
