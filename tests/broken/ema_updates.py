"""The moving average saves its weights but not its count of updates, so its warm-up begins anew after a resume.
component: locals:ema.updates
check: kill
"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


class EMA:
    def __init__(self, model, decay=0.95):
        self.decay = decay
        self.updates = 0
        self.shadow = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for name, value in model.state_dict().items():
            self.shadow[name].lerp_(value, 1 - decay)

    def state_dict(self):
        return {"shadow": self.shadow}

    def load_state_dict(self, state):
        for name, value in state["shadow"].items():
            self.shadow[name].copy_(value)


def main():
    samebits.set_random_seed(8)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(6)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 20), nn.ReLU(), nn.Linear(20, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    ema = EMA(model)

    with samebits.Run("runs/ema_updates", model=model, optimizer=optimizer, ema=ema) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ema.update(model)
            run.log(loss=loss)

        model.load_state_dict(ema.shadow)
        with torch.no_grad():
            print(f"loss of the averaged weights {nn.functional.cross_entropy(model(x), y).item():.6f}")


if __name__ == "__main__":
    main()
