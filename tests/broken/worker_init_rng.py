"""Each worker has a NumPy generator, made in worker_init_fn, that advances with what this worker draws.
component: batch
check: workers
"""

import numpy as np
import torch
from torch import nn

import samebits


class Noisy(torch.utils.data.Dataset):
    def __init__(self, x, y):
        self.x = x
        self.y = y
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = self.rng.normal(size=self.x[index].shape).astype("float32")
        return self.x[index] + 0.2 * noise, self.y[index]


def init_worker(worker):
    torch.utils.data.get_worker_info().dataset.rng = np.random.default_rng(worker)


def main():
    samebits.set_random_seed(33)
    samebits.enable_op_determinism()
    fixed = np.random.default_rng(1)
    x = fixed.normal(size=(80, 6)).astype("float32")
    y = np.sin(x.sum(1, keepdims=True)).astype("float32")
    loader = samebits.data.DataLoader(
        Noisy(x, y), batch_size=8, shuffle=True, num_workers=2, worker_init_fn=init_worker
    )
    model = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with samebits.Run("runs/worker_init_rng", model=model, optimizer=optimizer) as run:
        for step, (inputs, targets) in run.steps(loader, epochs=3):
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
