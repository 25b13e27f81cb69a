"""What runs inside the body of a step (a validation, a nested loop) leaves the body's own position and draws as they were."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from samebits._context import process
from samebits.nn._layer_keys import preserve_call_counts
from samebits.random._process.preserve_rng_state import preserve_rng_state


def leave_body(objects: Mapping[str, Any]) -> Callable[[], None]:
    """Notes where the body of the step is; what it returns goes on there."""
    position, generators = process.position, preserve_rng_state()
    layers = preserve_call_counts(thing for thing in objects.values() if isinstance(thing, torch.nn.Module))

    def go_on() -> None:
        process.position = position
        generators()
        layers()

    return go_on
