"""The count is part of the callback's state."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


class AverageWeights(samebits.callbacks.Callback):
    def __init__(self, every=4):
        self.every = every
        self.average = {}
        self.count = 0

    def on_batch_end(self, trainer, step, logs):
        if (step + 1) % self.every:
            return
        self.count += 1
        for name, value in trainer.model.state_dict().items():
            mean = self.average.get(name, torch.zeros_like(value))
            self.average[name] = mean + (value - mean) / self.count

    def on_train_end(self, trainer):
        trainer.model.load_state_dict(self.average)

    def state_dict(self):
        return {"average": self.average, "count": self.count}

    def load_state_dict(self, state):
        self.average, self.count = state["average"], state["count"]


samebits.set_random_seed(10)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(8)
x = torch.randn(100, 8, generator=fixed)
y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
train = samebits.data.DataLoader(TensorDataset(x[:80], y[:80]), batch_size=8, shuffle=True)
val = samebits.data.DataLoader(TensorDataset(x[80:], y[80:]), batch_size=20)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
trainer = samebits.Trainer(model, nn.functional.cross_entropy, optimizer, callbacks=[AverageWeights()])
trainer.fit(train, epochs=3, validation_data=val, run_dir="runs/callback_average", verbose=False)
print(trainer.evaluate(val))
