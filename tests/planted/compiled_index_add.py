"""Index_add in compiled code adds on several threads.
cause: a compiled kernel
check: run-again
"""

import torch
from torch import nn

import samebits

samebits.set_random_seed(1)
torch.set_num_threads(4)
model = nn.Linear(16, 1)
index = torch.randint(0, 7, (60000,))
rows = torch.randn(60000, 16)


@torch.compile
def pooled(values, index):
    return torch.zeros(7, 16).index_add(0, index, values)


def loss_of(step):
    x = pooled(rows * (step + 1), index)  # HERE
    return model(x).square().mean()


optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(4):
    optimizer.zero_grad()
    loss = loss_of(step)
    loss.backward()
    optimizer.step()
print(loss.item())
