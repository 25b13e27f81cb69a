"""The hidden state is kept in run.state."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


class Forecaster(nn.Module):
    def __init__(self, width=10):
        super().__init__()
        self.gru = nn.GRU(1, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x, hidden):
        out, hidden = self.gru(x, hidden)
        return self.head(out), hidden


samebits.set_random_seed(0)
samebits.enable_op_determinism()

series = torch.sin(torch.arange(401) * 0.21) + 0.5 * torch.sin(torch.arange(401) * 0.034)
streams = series[:400].reshape(4, 100).T.reshape(10, 10, 4, 1)
targets = series[1:].reshape(4, 100).T.reshape(10, 10, 4, 1)
loader = samebits.data.DataLoader(TensorDataset(streams, targets), batch_size=None)

model = Forecaster()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with samebits.Run("runs/recurrent_hidden", model=model, optimizer=optimizer) as run:
    run.state.hidden = torch.zeros(1, 4, 10)
    for step, (x, y) in run.steps(loader, epochs=4):
        out, hidden = model(x, run.state.hidden)
        run.state.hidden = hidden.detach()
        loss = nn.functional.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
        if step.ends_epoch:
            run.state.hidden = torch.zeros(1, 4, 10)
            print(f"epoch {step.epoch} loss {loss.item():.6f}")
