"""The registry of cases, and the datasets that they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Case = Callable[[], tuple[Any, dict[str, Any]]]
"""Makes a dataset and further arguments of its loader."""
CASES: dict[str, dict[str, Case]] = {}
"""By the library that must be installed, by name."""


def case(library: str) -> Callable[[Case], Case]:
    """Registers a case that needs a library."""

    def add(make: Case) -> Case:
        CASES.setdefault(library, {})[make.__name__] = make
        return make

    return add


class Mapped(torch.utils.data.Dataset):
    """Items with a transform, as most tutorials write it."""

    def __init__(self, items: Any, transform: Callable[[Any], Any]) -> None:
        self.items, self.transform = items, transform

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.items[index])


def images(count: int = 32, side: int = 32) -> list[np.ndarray]:
    """Images of 8 bits, height by width by 3."""
    numbers = np.random.default_rng(0)
    return [numbers.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(count)]


def image_tensors(count: int = 32, side: int = 32) -> list[torch.Tensor]:
    """The same as tensors, 3 by height by width."""
    return [torch.from_numpy(one).permute(2, 0, 1).contiguous() for one in images(count, side)]


def waves(count: int = 16) -> list[np.ndarray]:
    """Sounds of a second at 8 kHz."""
    return [np.sin(np.arange(8000, dtype=np.float32) * (0.01 + 0.001 * n)) for n in range(count)]
