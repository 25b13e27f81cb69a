"""LU factorisations run on one thread, like the rest of LAPACK, but for batches of small matrices.

Blocked algorithms sum in an order that depends on the thread count (results differ to 2e-4). `solve`, `inv`,
`det`, `slogdet` and `lu` are made of this one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samebits._native.torch_threads import on_single_thread
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import replacements

_SMALL = 128
"""MKL's getrf factors matrices up to this size in one piece (measured: 150), the same in any thread."""


def _lu_factor(kernel: Kernel) -> Kernel:
    """LU of a batch of small matrices keeps torch's loop, one matrix to a thread; others are serial.

    With larger matrices that loop is not only different for each thread count: it gives wrong factors after
    any `torch.set_num_threads` (pytorch#142815, #141358), because MKL's row swaps are not safe there.
    """
    serial = on_single_thread(kernel)

    def lu_factor(matrices: Tensor, **kwargs: Any) -> Any:
        small = matrices.dim() > 2 and max(matrices.shape[-2:]) <= _SMALL
        return (kernel if small else serial)(matrices, **kwargs)

    return lu_factor


REPLACEMENTS = replacements(
    ("linalg_lu_factor_ex", "linalg_lu_factor_ex.out"),
    _lu_factor,
    "blocked factorisations differ between thread counts: run on one thread, except batches of small "
    "matrices",
    only_threads=True,
    serial=True,
)
