"""Memory that nobody has written: torch's flag fills it (NaN, the largest integer), so `torch.empty` repeats.

A program may turn that off by `torch.utils.deterministic.fill_uninitialized_memory = False`. Ops that read
such memory get it filled all the same, and ours, which write all that they allocate, never.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.deterministic

from samebits._native.torch_threads import on_single_thread
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import NotCoveredError, replacements

memory_fill: Any = torch.utils.deterministic  # its flag is a property of the module, which no checker sees


def _with_memory_filled(kernel: Kernel) -> Kernel:
    """Returns the kernel, with every tensor that it allocates filled."""

    def filled(*args: Any, **kwargs: Any) -> Any:
        before = memory_fill.fill_uninitialized_memory
        memory_fill.fill_uninitialized_memory = True
        try:
            return kernel(*args, **kwargs)
        finally:
            memory_fill.fill_uninitialized_memory = before

    return filled


def without_fill(kernel: Kernel, otherwise: Callable[[NotCoveredError], Kernel] | None) -> Kernel:
    """Returns the kernel, with nothing filled that it allocates: for one that writes all of it.

    `otherwise`: gives the kernel for arguments that this one does not cover, or raises.
    """

    def unfilled(*args: Any, **kwargs: Any) -> Any:
        fills = _fills()
        if fills:
            _set_fill(False)
        try:
            return kernel(*args, **kwargs)
        except NotCoveredError as error:
            if otherwise is None:
                raise
            call = error
        finally:
            if fills:
                _set_fill(True)
        return otherwise(call)(*args, **kwargs)

    return unfilled


# the functions of torch themselves: the property takes ten times as long
_fills = torch._C._get_deterministic_fill_uninitialized_memory
_set_fill = torch._C._set_deterministic_fill_uninitialized_memory


def _serial(kernel: Kernel) -> Kernel:
    """Returns the kernel on one thread, as all of LAPACK."""
    return on_single_thread(_with_memory_filled(kernel))


REPLACEMENTS = (
    *replacements(
        ("linalg_lstsq", "linalg_lstsq.out"),
        _serial,
        "the default driver (gelsy) reads a pivot array that nobody wrote (pytorch#71222): it is filled "
        "first",
        serial=True,
    ),
    *replacements(
        ("_ctc_loss", "_ctc_loss.Tensor"),
        _with_memory_filled,
        "its second output has places that nobody writes: they are filled first",
    ),
)
