"""Three ways in which replicas drift apart, each found before a run: python examples/replica/broken.py

A gradient that nobody reduces, a BatchNorm buffer, a parameter outside of the wrapped module. No GPU, no second process.
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


def report(model, head):
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    x, y = torch.randn(8, 16), torch.randint(0, 4, (8,))
    return analyze(capture(step, model, head, optimizer, x, y, world_size=4))


def main():
    forgotten = report(Net(), nn.Linear(4, 4))
    print("-- no DDP\n" + forgotten.explain("model.fc.weight"))
    outside = report(DataParallel(Net()), nn.Linear(4, 4))
    print("-- a parameter outside of DDP\n" + outside.explain("head.weight"))
    print("-- a buffer of batch statistics\n" + outside.explain("model.module.norm.running_mean"))
    whole = report(DataParallel(Net()), DataParallel(nn.Linear(4, 4)))
    trained = [name for name in whole.step.input_names if name.endswith((".weight", ".bias", ".exp_avg"))]
    whole.expect_equal(*trained)
    print(f"-- all of it in DDP: {len(trained)} parameters and moments are replica-equal")


if __name__ == "__main__":
    main()
