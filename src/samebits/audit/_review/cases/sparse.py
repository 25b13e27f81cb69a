"""Sparse tensors: products, coalescing duplicates, gradients."""

from __future__ import annotations

import torch

from samebits.audit._review.case import (
    F32,
    F64,
    ReviewCase,
    backward,
    constant,
    forward,
    integers,
    mapped,
    normal,
)

N = 1 << 18
_G = "sparse"


def _coo(i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(i, v, (1000, 1000)).coalesce()


_matrix = mapped(_coo, integers(1000, 2, 50_000), normal(50_000))
_csr = mapped(lambda s: s.to_sparse_csr(), _matrix)
_dense = normal(1000, 256)

CASES: tuple[ReviewCase, ...] = (
    *forward(_G, "sparse.mm, COO", torch.sparse.mm, _matrix, _dense, dtypes=(F32, F64)),
    *forward(_G, "mm, CSR", torch.mm, _csr, _dense, dtypes=(F32, F64)),
    *forward(_G, "mv, CSR", torch.mv, _csr, normal(1000), dtypes=(F32, F64)),
    *forward(_G, "sparse by sparse, CSR", lambda a: (a @ a).to_dense(), _csr),
    *forward(_G, "sparse by sparse, COO", lambda a: torch.sparse.mm(a, a), _matrix),
    *forward(_G, "addmm, COO", torch.sparse.addmm, _dense, _matrix, _dense),
    *forward(
        _G,
        "coalesce of duplicates",
        lambda i, v: torch.sparse_coo_tensor(i, v, (200, 200)).coalesce(),
        integers(200, 2, N),
        normal(N),
        dtypes=(F32, F64),
    ),
    *forward(
        _G,
        "to_dense of duplicates",
        lambda i, v: torch.sparse_coo_tensor(i, v, (200, 200)).to_dense(),
        integers(200, 2, N),
        normal(N),
    ),
    *forward(_G, "sparse.sum", lambda s: (torch.sparse.sum(s), torch.sparse.sum(s, 0)), _matrix),
    *forward(_G, "sparse.softmax", lambda s: torch.sparse.softmax(s, 1), _matrix),
    *forward(_G, "add, mul", lambda s, d: (s + s, s * d[:, :1].expand(1000, 1000)), _matrix, _dense),
    *forward(
        _G,
        "sampled_addmm",
        torch.sparse.sampled_addmm,
        _csr,
        _dense,
        mapped(lambda d: d.t().contiguous(), _dense),
    ),
    *backward(
        _G,
        "sparse.mm with gradients",
        lambda i, v, d: torch.sparse.mm(torch.sparse_coo_tensor(i, v, (1000, 1000)), d),
        integers(1000, 2, 50_000),
        normal(50_000),
        _dense,
    ),
    *backward(
        _G,
        "embedding, sparse gradient",
        lambda i, w, s: torch.nn.functional.embedding(i, w, sparse=s),
        integers(500, 20_000),
        normal(500, 64),
        constant(True),
    ),
)
