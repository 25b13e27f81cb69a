"""Three ways in which replicas drift apart, each found before a run: python examples/replica/broken.py

A gradient that nobody reduces, a BatchNorm buffer, a parameter outside of the wrapped module. No GPU, no second process.
On the command line: samebits replica examples.replica.broken:forgotten --world-size 4 --html forgotten.html
"""

import torch
from torch import nn

from samebits.replica import DataParallel, analyze, capture


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.out = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.fc(x))))


def step(model, head, optimizer, x, y):
    loss = nn.functional.cross_entropy(head(model(x)), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def step_and_args(model, head):
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    return step, (model, head, optimizer, torch.randn(8, 16), torch.randint(0, 4, (8,)))


def forgotten():
    return step_and_args(Net(), nn.Linear(4, 4))


def outside():
    return step_and_args(DataParallel(Net()), nn.Linear(4, 4))


def whole():
    return step_and_args(DataParallel(Net()), DataParallel(nn.Linear(4, 4)))


def synchronised():
    """The cure of all three: DDP around everything, and batch statistics that all ranks share (here: none)."""
    model = Net()
    model.norm = nn.LayerNorm(16)
    return step_and_args(DataParallel(model), DataParallel(nn.Linear(4, 4)))


def report(made):
    step, args = made
    return analyze(capture(step, *args, world_size=4))


def main():
    print("-- no DDP\n" + report(forgotten()).explain("model.fc.weight"))
    found = report(outside())
    print("-- a parameter outside of DDP\n" + found.explain("head.weight"))
    print("-- a buffer of batch statistics\n" + found.explain("model.module.norm.running_mean"))
    found = report(whole())
    trained = [name for name in found.step.input_names if name.endswith((".weight", ".bias", ".exp_avg"))]
    found.expect_equal(*trained)
    print(f"-- all of it in DDP: {len(trained)} parameters and moments are replica-equal")


if __name__ == "__main__":
    main()
