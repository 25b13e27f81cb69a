"""A layer that draws cannot be traced into a graph: its mask would become a constant of the graph."""

from __future__ import annotations

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from samebits.errors import UnimplementedError


def check(layer: torch.nn.Module) -> None:
    """Raises `UnimplementedError` while make_fx, torch.export or torch.jit.trace runs the caller."""
    if torch.jit.is_tracing() or get_proxy_mode() is not None:
        raise UnimplementedError(
            f"samebits.nn.{type(layer).__name__} is called while torch.export, make_fx or torch.jit.trace records its "
            "caller: the graph would repeat one mask for ever. Trace in eval mode (model.eval()), or use torch.compile, "
            "which asks for a new key at each call."
        )
