"""Unwritten memory in the backward of a custom function.
cause: unwritten memory
check: run-again
"""

import torch
from torch import nn


class TopK(torch.autograd.Function):
    """Keeps the k largest of each row; the gradient goes to these alone."""

    @staticmethod
    def forward(ctx, x, k):
        values, places = x.topk(k, dim=1)
        ctx.save_for_backward(places)
        ctx.shape = x.shape
        return values

    @staticmethod
    def backward(ctx, grad):
        (places,) = ctx.saved_tensors
        out = torch.empty(ctx.shape, dtype=grad.dtype)  # HERE
        out.scatter_(1, places, grad)
        return out.clamp(-1.0, 1.0), None


class Sparse(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(10, 32)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(TopK.apply(self.encode(x), 8))


def main():
    torch.manual_seed(90)
    model = Sparse()
    x = torch.randn(320, 10)
    labels = (x[:, 0] > x[:, 1]).long()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(16):
        rows = slice(20 * step, 20 * step + 20)
        loss = nn.functional.cross_entropy(model(x[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.9f} sum {sum(p.double().sum() for p in model.parameters()).item():.15g}")


main()
