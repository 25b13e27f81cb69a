"""LAPACK runs on one thread: its blocked algorithms sum in an order that depends on the thread count."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samebits._native.torch_threads import on_single_thread
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import replacements

_SMALL = 128
"""MKL's getrf factors matrices up to this size in one piece (measured: 150), the same in any thread."""


def _lu_factor(kernel: Kernel) -> Kernel:
    """LU of a batch of small matrices keeps torch's loop over the batch, one matrix to a thread; others are serial.

    With larger matrices that loop is not only different for each thread count: it gives wrong factors after any
    `torch.set_num_threads` (pytorch#142815, #141358), because MKL's row swaps are not safe there.
    """
    serial = on_single_thread(kernel)

    def lu_factor(matrices: Tensor, **kwargs: Any) -> Any:
        small = matrices.dim() > 2 and max(matrices.shape[-2:]) <= _SMALL
        return (kernel if small else serial)(matrices, **kwargs)

    return lu_factor


_OPS = (
    "cholesky",
    "cholesky.out",
    "linalg_cholesky_ex",
    "linalg_cholesky_ex.L",
    "_cholesky_solve_helper",
    "cholesky_inverse",
    "cholesky_inverse.out",
    "geqrf",
    "geqrf.a",
    "linalg_eig",
    "linalg_eig.out",
    "_linalg_eigvals",
    "linalg_eigvals.out",
    "_linalg_eigh",
    "_linalg_eigh.eigenvalues",
    "linalg_householder_product",
    "linalg_householder_product.out",
    "linalg_ldl_factor_ex",
    "linalg_ldl_factor_ex.out",
    "linalg_ldl_solve",
    "linalg_ldl_solve.out",
    "linalg_lu_solve",
    "linalg_lu_solve.out",
    "linalg_qr",
    "linalg_qr.out",
    "linalg_solve_triangular",
    "linalg_solve_triangular.out",
    "_linalg_svd",
    "_linalg_svd.U",
    "ormqr",
    "ormqr.out",
    "triangular_solve",
    "triangular_solve.X",
)
"""Ops that call LAPACK themselves. `solve`, `inv`, `det`, `slogdet`, `lu`, `pinv` and the rest are made of these."""
_REASON = "blocked factorisations and solves differ between thread counts (to 2e-4): run on one thread"

REPLACEMENTS = (
    *replacements(_OPS, on_single_thread, _REASON, only_threads=True, serial=True),
    *replacements(
        ("linalg_lu_factor_ex", "linalg_lu_factor_ex.out"),
        _lu_factor,
        _REASON + ", except batches of small matrices",
        only_threads=True,
        serial=True,
    ),
)
