"""The noise is seeded with the index alone."""

import numpy as np
import torch
from torch import nn

import samebits


class Noisy(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        rng = np.random.default_rng([0, index])
        noise = torch.from_numpy(rng.standard_normal(self.x.shape[1], dtype=np.float32))
        return self.x[index] + 0.3 * noise, self.y[index]


def main():
    samebits.set_random_seed(35)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(33)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(Noisy(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with samebits.Run("runs/worker_number_seed", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
