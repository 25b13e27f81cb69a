"""A sampler counts its own epochs and shuffles with the count, which a resumed run begins with 0.
component: locals:loader.sampler.epoch
check: kill
"""

import torch
from torch import nn
from torch.utils.data import Sampler, TensorDataset

import samebits


class HalfOfTheData(Sampler):
    def __init__(self, length):
        self.length = length
        self.epoch = 0

    def __iter__(self):
        generator = torch.Generator().manual_seed(self.epoch)
        self.epoch += 1
        yield from torch.randperm(self.length, generator=generator)[: len(self)].tolist()

    def __len__(self):
        return self.length // 2


def main():
    samebits.set_random_seed(39)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(37)
    x = torch.randn(160, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, sampler=HalfOfTheData(len(x)))
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with samebits.Run("runs/sampler_epoch", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=4):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
