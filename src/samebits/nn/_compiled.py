"""Compiled models without a break of the graph at each layer that draws.

A key is a function of the position, which Python knows and a graph does not. So the key of a layer is an input of the
graph: before each forward every layer is handed the key of its place, and the graph folds into it which call of the
forward it is. Nothing in the graph has a state, so that recomputing any of it gives the same masks.
"""

from __future__ import annotations

from typing import Any

import torch

from samebits.nn._layer_keys import OwnsRandomness, layers


def compiled(model: torch.nn.Module, **options: Any) -> torch.nn.Module:
    """`torch.compile(model, **options)`, whose masks are those of `model`, and whose graph does not break at a layer.

    Layers whose key is not a function of the position (before `set_step` or `own_randomness(key=...)`, outside a `Run`)
    break it as they do under torch.compile, which is an error with fullgraph=True.

    Args:
        model: with all its layers: one that is added later breaks the graph.
        options: of torch.compile.
    """
    keyed = _Keys([layer for _, layer in layers(model)])
    module: Any = torch.compile(model, **options)  # a module, for a module
    module.register_forward_pre_hook(keyed.hand)
    module.register_forward_hook(keyed.take_back, always_call=True)
    return module


class _Keys:
    """Hooks around a compiled forward, outside its graph."""

    def __init__(self, layers: list[OwnsRandomness]) -> None:
        self._layers = layers
        self._handed: list[OwnsRandomness] = []

    def hand(self, _module: torch.nn.Module, _args: Any) -> None:
        self._handed = []
        for layer in self._layers:
            if layer.training and layer.hand_key() is not None:
                self._handed.append(layer)

    def take_back(self, _module: torch.nn.Module, _args: Any, _result: Any) -> None:
        for layer in self._handed:
            layer.take_back()
