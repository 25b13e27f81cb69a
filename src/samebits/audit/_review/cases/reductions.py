"""Reductions over 10^6 elements and more: whole tensors, one row, both dimensions, scans, order statistics."""

from __future__ import annotations

import torch

from samebits.audit._review.case import (
    ALL_DTYPES,
    ReviewCase,
    cancelling,
    constant,
    forward,
    integers,
    mapped,
    normal,
)

BIG, N = 1_000_003, 1 << 20
_G = "reductions"
_flat, _table, _zero_sum = normal(BIG), normal(1111, 1777), cancelling(3_000_001)
_near_one = normal(BIG, scale=1e-3, shift=1.0)
_dups = mapped(lambda i: i.float(), integers(100, N))

CASES: tuple[ReviewCase, ...] = (
    *forward(_G, "sum all", torch.sum, _zero_sum, dtypes=ALL_DTYPES, strided=True),
    *forward(_G, "sum dim 0", lambda x: x.sum(0), _table, dtypes=ALL_DTYPES, strided=True),
    *forward(_G, "sum dim 1", lambda x: x.sum(1), _table, dtypes=ALL_DTYPES, strided=True),
    *forward(_G, "sum of one row 1x1000000", lambda x: x.sum(1), cancelling(1, 1_000_000), dtypes=ALL_DTYPES),
    *forward(_G, "sum of one column", lambda x: x.sum(0), cancelling(1_000_000, 1), dtypes=ALL_DTYPES),
    *forward(_G, "sum of 8 rows", lambda x: x.sum(1), normal(8, 200_003), dtypes=ALL_DTYPES),
    *forward(_G, "sum of 8 columns", lambda x: x.sum(0), normal(200_003, 8), dtypes=ALL_DTYPES),
    *forward(_G, "sum of transposed", lambda x: x.t().sum(0), _table, dtypes=ALL_DTYPES),
    *forward(_G, "sum of the outer and inner of 3 dims", lambda x: x.sum((0, 2)), normal(40, 31, 1001)),
    *forward(_G, "sum of bfloat16 to float32", lambda x: x.bfloat16().sum(dtype=torch.float32), _flat),
    *forward(_G, "sum of int64", lambda x: x.sum(), integers(1000, N)),
    *forward(_G, "sum complex", lambda x: torch.complex(x, x).sum(), _flat),
    *forward(_G, "mean all", torch.mean, _zero_sum, dtypes=ALL_DTYPES, strided=True),
    *forward(_G, "mean dim 1", lambda x: x.mean(1), _table, dtypes=ALL_DTYPES),
    *forward(_G, "mean of one row", lambda x: x.mean(1), cancelling(1, 1_000_000), dtypes=ALL_DTYPES),
    *forward(_G, "nansum", torch.nansum, _zero_sum, dtypes=ALL_DTYPES),
    *forward(_G, "nanmean", torch.nanmean, _zero_sum),
    *forward(_G, "prod all", torch.prod, _near_one, dtypes=ALL_DTYPES),
    *forward(_G, "prod of one row", lambda x: x.prod(1), normal(1, N, scale=1e-3, shift=1.0)),
    *forward(_G, "var all", torch.var, _flat, dtypes=ALL_DTYPES),
    *forward(_G, "var_mean dim 1", lambda x: torch.var_mean(x, 1), _table),
    *forward(_G, "std dim 0", lambda x: x.std(0), _table),
    *forward(_G, "std of one row", lambda x: x.std(1), normal(1, N)),
    *forward(_G, "logsumexp dim 0", lambda x: x.logsumexp(0), _table),
    *forward(_G, "logsumexp all", lambda x: x.logsumexp(0), _flat, dtypes=ALL_DTYPES),
    *forward(_G, "softmax dim 1", lambda x: x.softmax(1), _table, dtypes=ALL_DTYPES),
    *forward(_G, "softmax dim 0", lambda x: x.softmax(0), _table, dtypes=ALL_DTYPES),
    *forward(_G, "softmax of one row", lambda x: x.softmax(0), _flat, dtypes=ALL_DTYPES),
    *forward(_G, "log_softmax of one row", lambda x: x.log_softmax(0), _flat, dtypes=ALL_DTYPES),
    *(
        case
        for order in (0, 0.5, 1, 2, 3, float("inf"), float("-inf"))
        for case in forward(
            _G, f"vector_norm {order}", torch.linalg.vector_norm, _flat, constant(order), dtypes=ALL_DTYPES
        )
    ),
    *forward(_G, "norm 1 (p)", lambda x: x.norm(1), _flat),
    *forward(_G, "norm 1 of one row", lambda x: x.norm(1, 1), normal(1, N)),
    *forward(_G, "norm frobenius", torch.linalg.matrix_norm, _table),
    *forward(_G, "norm nuclear", lambda x: torch.linalg.matrix_norm(x, "nuc"), normal(200, 150)),
    *forward(_G, "dist", lambda x: torch.dist(x, x.flip(0)), _flat),
    *forward(
        _G,
        "max, argmax, aminmax all",
        lambda x: (x.max(), x.argmax(), *x.aminmax()),
        _flat,
        dtypes=ALL_DTYPES,
    ),
    *forward(_G, "argmin of duplicates", lambda x: (x.argmin(), x.argmax()), _dups),
    *forward(
        _G,
        "any, all, count_nonzero",
        lambda x: ((x > 3).any(), (x < 9).all(), (x > 0).count_nonzero()),
        _flat,
    ),
    *forward(_G, "trace", torch.trace, normal(1500, 1500)),
    *forward(_G, "cumsum 1-D", lambda x: x.cumsum(0), _flat, dtypes=ALL_DTYPES),
    *forward(_G, "cumsum dim 0", lambda x: x.cumsum(0), _table),
    *forward(_G, "cumprod", lambda x: x.cumprod(1), normal(1111, 1777, scale=0.01, shift=1.0)),
    *forward(_G, "logcumsumexp", lambda x: x.logcumsumexp(0), normal(N)),
    *forward(_G, "cummax", lambda x: (*x.cummax(0), *x.cummin(0)), normal(N)),
    *forward(_G, "sort, topk", lambda x: (*x.sort(), *x.topk(1000)), normal(N)),
    *forward(_G, "sort duplicates", lambda x: tuple(x.sort()), _dups),
    *forward(_G, "topk duplicates", lambda x: tuple(x.topk(1000)), _dups),
    *forward(_G, "median, kthvalue duplicates", lambda x: (*x.median(0), *x.kthvalue(1234)), _dups),
    *forward(_G, "mode duplicates", lambda x: tuple(x.mode(0)), _dups),
    *forward(
        _G, "unique", lambda i: torch.unique(i, return_inverse=True, return_counts=True), integers(1000, N)
    ),
    *forward(_G, "quantile", lambda x: torch.quantile(x, 0.3), normal(N)),
    *forward(_G, "bincount weights", torch.bincount, integers(1000, N), normal(N)),
    *forward(_G, "histc", lambda x: torch.histc(x, 100), normal(N)),
    *forward(
        _G, "histogram weighted", lambda x, w: torch.histogram(x, 100, weight=w)[0], normal(N), normal(N)
    ),
    *forward(_G, "cov, corrcoef", lambda x: (x.cov(), x.corrcoef()), normal(20, 50_000)),
    *forward(
        _G,
        "clip_grad_norm_ (get_total_norm)",
        lambda a, b: torch.nn.utils.get_total_norm([a, b]),
        normal(1024, 1024),
        normal(1024, 777),
    ),
)
