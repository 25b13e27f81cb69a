"""The tasks: a small transformer and a small convolutional network, with batches that are the same in each process."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class TransformerBlock(nn.Module):
    """Attention and two layers, both added to their inputs."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length, width) to the same shape."""
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Transformer(nn.Module):
    """A network of bytes to logits of 256 bytes."""

    def __init__(self, width: int, heads: int, layers: int, length: int, dropout: float) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, dropout) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps (batch, length) of bytes to (batch, length, 256)."""
        x = self.bytes(x) + self.places(torch.arange(x.shape[1], device=x.device))
        return self.head(self.norm(self.blocks(x)))


def convnet(width: int, dropout: float) -> nn.Module:
    """Returns a network from RGB images of 32x32 to 10 logits."""
    layers: list[nn.Module] = []
    channels = 3
    for step in range(3):
        wide = width << step
        layers += [nn.Conv2d(channels, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
        layers += [nn.Conv2d(wide, wide, 3, padding=1), nn.BatchNorm2d(wide), nn.ReLU(), nn.MaxPool2d(2)]
        channels = wide
    head = [
        nn.Flatten(), nn.Linear(channels * 16, 128), nn.ReLU(), nn.Dropout(dropout), nn.Linear(128, 10)
    ]  # fmt: skip
    return nn.Sequential(*layers, *head)


def model(task: str, *, small: bool, dropout: float) -> nn.Module:
    """Returns a "transformer" or a "convnet"."""
    if task == "convnet":
        return convnet(4 if small else 64, dropout)
    return Transformer(32, 2, 1, 16, dropout) if small else Transformer(512, 8, 6, 256, dropout)


def data(task: str, *, small: bool, batches: int) -> torch.utils.data.TensorDataset:
    """Returns that number of batches of inputs and targets, on the CPU, drawn from their own generator."""
    own = torch.Generator().manual_seed(11)
    count = batches * batch_size(task, small=small)
    if task == "convnet":
        inputs, targets = (
            torch.randn(count, 3, 32, 32, generator=own),
            torch.randint(10, (count,), generator=own),
        )
    else:
        rows = torch.randint(256, (count, 17 if small else 257), generator=own)
        inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
    return torch.utils.data.TensorDataset(inputs, targets)


def batch_size(task: str, *, small: bool) -> int:
    """Returns the rows of a batch."""
    if small:
        return 4
    return 256 if task == "convnet" else 32


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross entropy; the logits flat, since CUDA's kernel for planes adds in no fixed order."""
    if outputs.dim() == 3:
        outputs, targets = outputs.flatten(0, 1), targets.flatten()
    return F.cross_entropy(outputs.float(), targets)
