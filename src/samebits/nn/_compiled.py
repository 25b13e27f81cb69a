"""Compiled models without a graph break at each layer that draws.

A key is a function of the position, which Python knows and a graph does not. So the key of a layer is an
input of the graph: before each forward every layer gets the key of its position, and the graph folds the
number of the call in the forward into it. Nothing in the graph has a state, so recomputing any of it gives
the same masks.
"""

from __future__ import annotations

from typing import Any

import torch

from samebits.nn._layer_keys import OwnsRandomness, layers


def compiled(model: torch.nn.Module, **options: Any) -> torch.nn.Module:
    """Returns `torch.compile(model, **options)` with the masks of `model`; no layer breaks its graph.

    Layers whose key is not a function of the position (before `set_step` or `own_randomness(key=...)`,
    outside a `Run`) break the graph as under torch.compile, which is an error with fullgraph=True.

    Args:
        model: with all its layers; one that is added later breaks the graph.
        options: of torch.compile.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), samebits.nn.Dropout(0.5))
        >>> compiled = samebits.nn.compiled(model, backend="eager", fullgraph=True)
        >>> samebits.nn.set_step(model, 3, seed=1)
        >>> output = model(torch.ones(8, 4))
        >>> samebits.nn.set_step(model, 3, seed=1)
        >>> torch.equal(compiled(torch.ones(8, 4)), output)
        True
    """
    keyed = _KeyHooks([layer for _, layer in layers(model)])
    module: Any = torch.compile(model, **options)  # a module, for a module
    module.register_forward_pre_hook(keyed.set_keys)
    module.register_forward_hook(keyed._end_compiled_forward, always_call=True)
    return module


class _KeyHooks:
    """Hooks around a compiled forward, outside its graph."""

    def __init__(self, layers: list[OwnsRandomness]) -> None:
        self._layers = layers
        self._compiled_calls: list[OwnsRandomness] = []

    def set_keys(self, _module: torch.nn.Module, _args: Any) -> None:
        self._compiled_calls = []
        for layer in self._layers:
            if layer.training and layer._begin_compiled_forward() is not None:
                self._compiled_calls.append(layer)

    def _end_compiled_forward(self, _module: torch.nn.Module, _args: Any, _result: Any) -> None:
        for layer in self._compiled_calls:
            layer._end_compiled_forward()
