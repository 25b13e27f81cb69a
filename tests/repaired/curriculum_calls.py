"""The curriculum gets harder with the number of the step."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


class Curriculum:
    """Weights of the samples: easy ones first, all of them after `length` batches."""

    def __init__(self, length):
        self.length = length

    def weights(self, hardness, number):
        reach = (number + 1) / self.length
        return torch.sigmoid(8 * (reach - hardness))


samebits.set_random_seed(16)
samebits.enable_op_determinism()
fixed = torch.Generator().manual_seed(15)
x = torch.randn(80, 7, generator=fixed)
score = x @ torch.randn(7, generator=fixed)
y = (score > 0).float()
hardness = 1 / (1 + score.abs())
loader = samebits.data.DataLoader(TensorDataset(x, y, hardness), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(7, 20), nn.ReLU(), nn.Linear(20, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
curriculum = Curriculum(25)

with samebits.Run("runs/curriculum_calls", model=model, optimizer=optimizer) as run:
    for step, (inputs, labels, hard) in run.steps(loader, epochs=3):
        losses = nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], labels, reduction="none")
        loss = (curriculum.weights(hard, step.number) * losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            print(f"epoch {step.epoch} loss {loss.item():.6f}")
