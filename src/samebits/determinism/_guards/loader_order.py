"""torch's loaders with `in_order=False` keep the order, and do not hand out the first batch that is ready."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.utils.data as torch_data

from samebits._inspect.patching import Patches
from samebits.determinism._warn_once import warn_once
from samebits.errors import ConflictWarning


def watch(patches: Patches) -> None:
    """Makes every iteration keep the order."""
    patches.put(torch_data.DataLoader, "__iter__", _in_order(torch_data.DataLoader.__iter__))


def keep(loader: Any) -> None:
    """Sets `in_order` of a torch loader, and warns once if it was False."""
    if isinstance(loader, torch_data.DataLoader) and not getattr(loader, "in_order", True):
        loader.in_order = True
        warn_once(
            "in_order",
            "torch.utils.data.DataLoader(in_order=False): its batches would come in an order that differs "
            "from run to run. They come in order, as with in_order=True.",
            ConflictWarning,
        )


def _in_order(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def iterate(self: torch_data.DataLoader[Any]) -> Any:
        keep(self)
        return original(self)

    return iterate
