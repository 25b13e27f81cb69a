"""Attention on the CPU: its products of small matrices, made inside torch's parallel loop, are each on one thread.

MKL chooses how to cut a product by the number of threads that it may use, also where it then gets only one. And for
a few queries torch divides the keys among the threads: that is done on one thread.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from samebits._native.torch_threads import on_single_thread, parallel, set_mkl_threads
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import replacements

_FEW = 8
"""Queries; seen with 1 and with 3."""


def _forward(kernel: Kernel) -> Kernel:
    whole, shared = on_single_thread(kernel), _one_thread_for_mkl(kernel)

    def attention(query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return (whole if query.shape[-2] <= _FEW else shared)(query, *args, **kwargs)

    return attention


def _one_thread_for_mkl(kernel: Kernel) -> Kernel:
    if set_mkl_threads is None or parallel is None:
        return kernel
    set_threads, everywhere = set_mkl_threads, parallel
    # Called as a function of one pointer, its one integer is where the pointer would be.
    function = ctypes.cast(set_threads, ctypes.c_void_p)

    def attention(*args: Any, **kwargs: Any) -> Any:
        threads = torch.get_num_threads()
        before = set_threads(1)
        try:
            if threads > 1:
                everywhere(function, ctypes.c_void_p(1), threads, 0)
            return kernel(*args, **kwargs)
        finally:
            set_threads(before)

    return attention


_REASON = "MKL cuts the small products inside by the thread count: told that it has one thread"

REPLACEMENTS = (
    *replacements(["_scaled_dot_product_flash_attention_for_cpu"], _forward, _REASON, only_threads=True),
    *replacements(
        ["_scaled_dot_product_flash_attention_for_cpu_backward"],
        _one_thread_for_mkl,
        _REASON,
        only_threads=True,
    ),
)
