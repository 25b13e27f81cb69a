"""Parts of the data are joined in the order in which threads finish loading them.
component: batch
check: run-again
"""

import secrets
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


def download(part):
    time.sleep(secrets.randbelow(50) / 1000)  # the network
    generator = torch.Generator().manual_seed(part)
    return torch.randn(8, 5, generator=generator)


def main():
    samebits.set_random_seed(22)
    samebits.enable_op_determinism()
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(download, part) for part in range(10)]
        x = torch.cat([future.result() for future in as_completed(futures)])
    y = torch.tanh(x.sum(1, keepdim=True))
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with samebits.Run("runs/as_completed_order", model=model, optimizer=optimizer) as run:
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
