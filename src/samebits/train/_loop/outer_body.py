"""A validation or nested loop inside the body of a step leaves the body's position and draws unchanged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from samebits._context import process
from samebits.nn._layer_keys import preserve_call_counts
from samebits.random._global_generator import preserve_rng_state


def save_body(objects: Mapping[str, Any]) -> Callable[[], None]:
    """Notes the position of the body; returns a function that restores it."""
    position, generators = process.position, preserve_rng_state()
    layers = preserve_call_counts(thing for thing in objects.values() if isinstance(thing, torch.nn.Module))

    def restore_body() -> None:
        process.position = position
        generators()
        layers()

    return restore_body
