"""`Dropout` whose mask is a function of (seed, step, layer), whatever else draws."""

from __future__ import annotations

import torch

from samebits import random
from samebits.context import Words, process
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.random import words


class Dropout(torch.nn.Dropout):
    """`torch.nn.Dropout` that owns its randomness: the mask is keyed by (run's seed, step, layer path, call).

    Inside the loop of a `samebits.Run` that has the model, nothing else that draws, or does not draw any more, can
    shift the mask. Elsewhere the key is drawn from torch's default generator, so that it behaves as torch's.
    Its state_dict is empty, as torch's.

    Args:
        p: probability that an element is zeroed, 0 <= p <= 1.
        inplace: as in torch.
        name: what keys the layer; without it, its path in the model that was given to `Run`.
    """

    def __init__(self, p: float = 0.5, inplace: bool = False, *, name: str | None = None) -> None:
        super().__init__(p, inplace)
        self.layer_name = name
        self._step = -1
        self._calls = 0

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 (torch's name)
        """Zeroes elements with probability p and scales the others by 1 / (1 - p); identity in eval mode."""
        if not self.training or self.p == 0.0:
            return input
        if self.p == 1.0:
            return input.zero_() if self.inplace else input * 0.0
        with torch.no_grad():
            key = words.to_tensor(self._next_key())
            kept = random.uniform(key, *input.shape, dtype=torch.float32).to(input.device) >= self.p
            scale = kept.to(input.dtype).mul_(1.0 / (1.0 - self.p))
        return input.mul_(scale) if self.inplace else input * scale

    def _next_key(self) -> Words:
        """One key for each call within a step, counted from the step's start."""
        position, run_key = process.position, process.run_key
        if position is None or run_key is None:
            drawn = torch.randint(2**63 - 1, (1,))
            return words.fold(words.root(int(drawn)), "dropout")
        if self.layer_name is None:
            raise InvalidArgumentError(
                "samebits.nn.Dropout in a run that does not know it: give its model to Run(model=model), so that the "
                "layer is keyed by its path, or name it: Dropout(name='head')."
            )
        if torch._C._current_graph_task_id() != -1:
            self._check_recomputed()
            return words.fold(run_key, "dropout", self.layer_name, position.step, 1)
        if position.step != self._step:
            self._step, self._calls = position.step, 0
        self._calls += 1
        return words.fold(run_key, "dropout", self.layer_name, position.step, self._calls)

    def _check_recomputed(self) -> None:
        """Inside backward, activation checkpointing repeats a forward: it must draw that forward's mask."""
        if self._calls != 1:
            raise UnimplementedError(
                f"samebits.nn.Dropout {self.layer_name!r} was called {self._calls} times in this step and is repeated by "
                "activation checkpointing, which does not tell which call it repeats. Use one layer per call."
            )


def name_layers(module: torch.nn.Module, prefix: str) -> None:
    """Gives every layer of `module` that owns randomness and has no name its path as name."""
    for path, layer in module.named_modules():
        if isinstance(layer, Dropout) and layer.layer_name is None:
            layer.layer_name = f"{prefix}.{path}" if path else prefix
