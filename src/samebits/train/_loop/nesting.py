"""A validation or nested loop inside the body of a step leaves the body's position and draws unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from samebits._context import process
from samebits.nn import set_aside as set_layers_aside
from samebits.random._process.preserve_rng_state import set_aside


def save_body(objects: Mapping[str, Any]) -> Callable[[], None]:
    """Notes the position of the body; returns a function that restores it."""
    position, generators = process.position, set_aside()
    layers = set_layers_aside(thing for thing in objects.values() if isinstance(thing, torch.nn.Module))

    def restore_body() -> None:
        process.position = position
        generators()
        layers()

    return restore_body
