"""Elements on the device that uses them: pinned memory, and copies on a stream beside that of the computation."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree

from samebits.errors import InvalidArgumentError


class Placement:
    """Moves the tensors of an element, in dicts, lists and tuples too; all else stays as it is.

    To CUDA an element goes through pinned memory on a stream of its own, so that the copy runs while the device still
    computes the step before; nothing is read ahead, so that a position stays what it is.
    """

    def __init__(self, device: str | torch.device | None, *, pin_memory: bool) -> None:
        """Raises `InvalidArgumentError` if there is no such device here, or no CUDA to pin memory for."""
        try:
            self._device = None if device is None else torch.device(device)
        except RuntimeError as error:
            raise InvalidArgumentError(
                f'Pipeline.prefetch(device={device!r}): {error}; give "cpu", "cuda" or "cuda:0"'
            ) from None
        self._pin = pin_memory
        self._cuda = self._device is not None and self._device.type == "cuda"
        if (self._cuda or pin_memory) and not torch.cuda.is_available():
            asked = f"prefetch(device={str(device)!r})" if self._cuda else "with_options(pin_memory=True)"
            raise InvalidArgumentError(
                f"Pipeline.{asked}: torch finds no CUDA device here. Leave it out, or ask torch.cuda.is_available() first"
            )

    def __call__(self, element: Any) -> Any:
        """The element on the device, for what the current stream does next."""
        if not self._cuda:
            return self._mapped(element)
        here = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._beside):
            moved = self._mapped(element)
        here.wait_stream(self._beside)
        for tensor in _pytree.tree_leaves(moved):
            if isinstance(tensor, torch.Tensor):
                tensor.record_stream(here)  # its memory is not used again before `here` is done with it
        return moved

    @cached_property
    def _beside(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)

    def _mapped(self, element: Any) -> Any:
        return _pytree.tree_map_only(torch.Tensor, self._placed, element)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        if (self._pin or self._cuda) and tensor.is_cpu:  # what a stage has put on a device stays there
            tensor = tensor.pin_memory()
        return tensor if self._device is None else tensor.to(self._device, non_blocking=self._cuda)
