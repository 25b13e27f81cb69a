"""The move of elements to a device: through pinned memory, on a stream beside that of the computation."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree

from samebits.errors import InvalidArgumentError


class Placement:
    """Moves the tensors of an element, also those in dicts, lists and tuples; all else stays as it is.

    To CUDA an element goes through pinned memory on a separate stream, so that the copy runs while the device still
    computes the previous step. Nothing is read ahead, so positions do not change.
    """

    def __init__(self, device: str | torch.device | None, *, pin_memory: bool) -> None:
        """Raises `InvalidArgumentError` if there is no such device, or no CUDA to pin memory for."""
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
                f"Pipeline.{asked}: torch finds no CUDA device here. Leave it out, or check torch.cuda.is_available() first"
            )

    def __call__(self, element: Any) -> Any:
        """Returns the element on the device, ready for the next work of the current stream."""
        if not self._cuda:
            return self._map(element)
        here = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copy_stream):
            moved = self._map(element)
        here.wait_stream(self._copy_stream)
        for tensor in _pytree.tree_leaves(moved):
            if isinstance(tensor, torch.Tensor):
                tensor.record_stream(here)  # its memory is not reused before `here` is done with it
        return moved

    @cached_property
    def _copy_stream(self) -> torch.cuda.Stream:
        return torch.cuda.Stream(self._device)

    def _map(self, element: Any) -> Any:
        return _pytree.tree_map_only(torch.Tensor, self._to_device, element)

    def _to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        if (self._pin or self._cuda) and tensor.is_cpu:  # what a stage has put on a device stays there
            tensor = tensor.pin_memory()
        return tensor if self._device is None else tensor.to(self._device, non_blocking=self._cuda)
