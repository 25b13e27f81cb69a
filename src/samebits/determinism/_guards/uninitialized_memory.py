"""Ops that read memory before it is written: they get it filled. Filling everywhere costs about 15% on large runs."""

from __future__ import annotations

from typing import Any

import torch.utils.deterministic

from samebits._native.torch_threads import on_single_thread
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import replacements

memory_fill: Any = torch.utils.deterministic  # its flag is a property of the module, which no checker sees


def _with_memory_filled(kernel: Kernel) -> Kernel:
    """Returns the kernel, with every tensor that it allocates filled."""

    def filled(*args: Any, **kwargs: Any) -> Any:
        memory_fill.fill_uninitialized_memory = True
        try:
            return kernel(*args, **kwargs)
        finally:
            memory_fill.fill_uninitialized_memory = False

    return filled


def _serial(kernel: Kernel) -> Kernel:
    """Returns the kernel on one thread, as all of LAPACK."""
    return on_single_thread(_with_memory_filled(kernel))


REPLACEMENTS = (
    *replacements(
        ("linalg_lstsq", "linalg_lstsq.out"),
        _serial,
        "the default driver (gelsy) reads a pivot array that nobody wrote (pytorch#71222): it is filled first",
        serial=True,
    ),
    *replacements(
        ("_ctc_loss", "_ctc_loss.Tensor"),
        _with_memory_filled,
        "its second output has places that nobody writes: they are filled first",
    ),
)
