"""Three ways in which replicas drift apart, each found before a run, and its cure: python examples/replica/broken.py

A gradient that nobody reduces, a parameter outside of the wrapped module, a BatchNorm buffer. No GPU, no second process.
On the command line: samebits replica examples/replica/broken.py:forgotten --world-size 8 --html forgotten.html
"""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn

from samebits.replica import DataParallel, analyze, capture


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.fc, self.norm, self.out = nn.Linear(16, 16), norm, nn.Linear(16, 4)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.fc(x))))


def step(model, head, optimizer, x, y):
    loss = nn.functional.cross_entropy(head(model(x)), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def step_that_reduces(model, head, optimizer, x, y):
    loss = nn.functional.cross_entropy(head(model(x)), y)
    loss.backward()
    for parameter in (*model.parameters(), *head.parameters()):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def step_that_broadcasts(model, head, optimizer, x, y):
    loss = step(model, head, optimizer, x, y)
    for buffer in model.buffers():
        buffer.copy_(collectives.broadcast(buffer, 0, dist.group.WORLD))
    return loss


def made(step, model, head):
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
    return step, (model, head, optimizer, torch.randn(8, 16), torch.randint(0, 4, (8,)))


def forgotten():
    """No DDP, and the loop has no all-reduce of its own."""
    return made(step, Net(nn.LayerNorm(16)), nn.Linear(4, 4))


def reduced():
    """The cure: the loop averages what backward gives."""
    return made(step_that_reduces, Net(nn.LayerNorm(16)), nn.Linear(4, 4))


def outside():
    """DDP, and a head that it does not wrap."""
    return made(step, DataParallel(Net(nn.LayerNorm(16))), nn.Linear(4, 4))


def inside():
    """The cure: DDP around the head, too."""
    return made(step, DataParallel(Net(nn.LayerNorm(16))), DataParallel(nn.Linear(4, 4)))


def unsynchronised():
    """DDP around everything, but the batch statistics are those of each rank's own batch."""
    return made(step, DataParallel(Net(nn.BatchNorm1d(16))), DataParallel(nn.Linear(4, 4)))


def synchronised():
    """The cure: after the step all ranks have the statistics of rank 0."""
    return made(step_that_broadcasts, DataParallel(Net(nn.BatchNorm1d(16))), DataParallel(nn.Linear(4, 4)))


def main():
    for broken, repaired in ((forgotten, reduced), (outside, inside), (unsynchronised, synchronised)):
        step, args = broken()
        report = analyze(capture(step, *args, world_size=4))
        print(f"-- {broken.__name__}: {broken.__doc__}\n{report.explain_drift(report.drifting[0])}")
        step, args = repaired()
        assert not analyze(capture(step, *args, world_size=4)).drifting
        print(f"-- {repaired.__name__}: {repaired.__doc__} Nothing drifts.")


if __name__ == "__main__":
    main()
