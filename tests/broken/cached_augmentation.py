"""The dataset caches each sample's first augmented version, and a resumed run makes other versions.
component: locals:loader.dataset.cache
check: kill
"""

import torch
from torch import nn

import samebits


class Spectra(torch.utils.data.Dataset):
    def __init__(self, signals, labels):
        self.signals = signals
        self.labels = labels
        self.cache = {}

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        if index not in self.cache:
            spectrum = torch.fft.rfft(self.signals[index]).abs()
            spectrum = spectrum + 0.5 * torch.randn(spectrum.shape)
            self.cache[index] = spectrum
        return self.cache[index], self.labels[index]


def main():
    samebits.set_random_seed(17)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(16)
    labels = torch.arange(80) % 3
    time = torch.arange(16)
    signals = torch.sin(time * (labels[:, None] + 1) * 0.4) + 0.3 * torch.randn(80, 16, generator=fixed)
    loader = torch.utils.data.DataLoader(Spectra(signals, labels), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(9, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    with samebits.Run("runs/cached_augmentation", model=model, optimizer=optimizer) as run:
        for step, (inputs, targets) in run.steps(loader, epochs=3):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
