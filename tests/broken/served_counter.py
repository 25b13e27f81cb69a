"""The dataset counts the samples that it has served and mirrors every third one; a resumed run counts anew.
component: locals:loader.dataset.served
check: kill
"""

import torch
from torch import nn

import samebits


class Signals(torch.utils.data.Dataset):
    def __init__(self, signals, labels):
        self.signals = signals
        self.labels = labels
        self.served = 0

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        signal = self.signals[index]
        self.served += 1
        if self.served % 3 == 0:
            signal = signal.flip(0)
        return signal, self.labels[index]


samebits.set_random_seed(31)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(30)
signals = torch.randn(80, 10, generator=fixed).cumsum(1)
labels = (signals[:, -1] > 0).long()
loader = samebits.data.DataLoader(Signals(signals, labels), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with samebits.Run("runs/served_counter", model=model, optimizer=optimizer) as run:
    for step, (inputs, targets) in run.steps(loader, epochs=3):
        loss = nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            print(f"epoch {step.epoch} loss {loss.item():.6f}")
