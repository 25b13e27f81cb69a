"""Receive from any source, added in the order of arrival, gloo.
cause: the order in which ranks send
check: run-again
ranks: 3
"""

import torch
import torch.distributed as dist
from torch import nn


def gather_gradients(model):
    """A parameter server: rank 0 adds gradients as they come, then sends the mean."""
    flat = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
    if dist.get_rank() == 0:
        total, incoming = flat.clone(), torch.empty_like(flat)
        for _ in range(dist.get_world_size() - 1):
            dist.recv(incoming)  # HERE
            total += incoming
        flat = total / dist.get_world_size()
    else:
        dist.send(flat, dst=0)
    dist.broadcast(flat, src=0)
    place = 0
    for p in model.parameters():
        p.grad.copy_(flat[place : place + p.numel()].view_as(p))
        place += p.numel()


def shard(rank, count=256):
    generator = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(count, 20, generator=generator)
    return x, (x[:, :3].sum(1, keepdim=True) > 0).float()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    x, y = shard(dist.get_rank())
    for step in range(20):
        rows = torch.arange(step * 32, step * 32 + 32) % len(x)
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(x[rows]), y[rows])
        loss.backward()
        gather_gradients(model)
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.9f} sum {sum(p.double().sum() for p in model.parameters()).item():.15g}")
    dist.destroy_process_group()


main()
