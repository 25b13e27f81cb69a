"""The slow weights are part of the state_dict."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import samebits


class Lookahead:
    """k steps forward, 1 step back (Zhang et al. 2019)."""

    def __init__(self, base, k=5, alpha=0.5):
        self.base = base
        self.k = k
        self.alpha = alpha
        self.parameters = [p for group in base.param_groups for p in group["params"]]
        self.slow = [p.detach().clone() for p in self.parameters]

    def zero_grad(self):
        self.base.zero_grad()

    @torch.no_grad()
    def step(self, number):
        self.base.step()
        if number % self.k == self.k - 1:
            for slow, fast in zip(self.slow, self.parameters):
                slow.lerp_(fast, self.alpha)
                fast.copy_(slow)

    def state_dict(self):
        return {"base": self.base.state_dict(), "slow": self.slow}

    def load_state_dict(self, state):
        self.base.load_state_dict(state["base"])
        for slow, saved in zip(self.slow, state["slow"]):
            slow.copy_(saved)


def main():
    samebits.set_random_seed(41)
    samebits.enable_op_determinism()
    fixed = torch.Generator().manual_seed(39)
    x = torch.randn(80, 8, generator=fixed)
    y = (x @ torch.randn(8, 3, generator=fixed)).argmax(1)
    loader = samebits.data.DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=0.02))
    with samebits.Run("runs/lookahead", model=model, optimizer=optimizer) as run:
        for step, (inputs, labels) in run.steps(loader, epochs=3):
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step(step.number)
            run.log(loss=loss)
            if step.ends_epoch:
                print(f"epoch {step.epoch} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
