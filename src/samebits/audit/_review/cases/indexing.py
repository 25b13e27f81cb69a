"""Reads and writes through indices with many duplicates: six of torch's run-to-run differences come from these."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from samebits.audit._review.case import (
    ALL_DTYPES,
    BF16,
    F32,
    ReviewCase,
    backward,
    forward,
    integers,
    mapped,
    normal,
)

N = 1 << 20
_G = "indexing"
_x, _i, _s = normal(1000), integers(1000, N), normal(N)
_X, _I, _S = normal(1000, 64), integers(1000, 20_000), normal(20_000, 64)
_bags, _table = integers(5000, 4000, 10), normal(5000, 64)
_MIX = 30
"""Repeats of a case that varies from run to run in torch."""


def _advanced(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[i, i % 64] += 1.0
    y[i] = s
    return y


CASES: tuple[ReviewCase, ...] = (
    *forward(
        _G,
        "index_put accumulate",
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        _x,
        _i,
        _s,
        dtypes=ALL_DTYPES,
        repeats=_MIX,
        strided=True,
    ),
    *forward(
        _G,
        "index_put accumulate rows",
        lambda x, i, s: x.index_put((i,), s, accumulate=True),
        _X,
        _I,
        _S,
        dtypes=ALL_DTYPES,
        repeats=_MIX,
    ),
    *forward(
        _G,
        "index_put accumulate of one value",
        lambda x, i: x.index_put((i,), torch.ones((), dtype=x.dtype), accumulate=True),
        _x,
        _i,
        dtypes=(F32, BF16),
        repeats=_MIX,
    ),
    *forward(
        _G,
        "index_put overwrite",
        lambda x, i, s: x.index_put((i,), s),
        _x,
        _i,
        _s,
        dtypes=ALL_DTYPES,
        repeats=_MIX,
    ),
    *forward(_G, "x[i] = s, two indices", _advanced, _X, _I, _S, repeats=_MIX),
    *backward(_G, "x[i]", lambda x, i: x[i], _x, _i, dtypes=ALL_DTYPES, repeats=_MIX),
    *backward(_G, "x[i, j]", lambda x, i: x[i, i % 64], _X, _i, repeats=_MIX),
    *forward(
        _G,
        "put_ accumulate",
        lambda x, i, s: x.clone().put_(i, s, accumulate=True),
        _x,
        _i,
        _s,
        dtypes=ALL_DTYPES,
        repeats=_MIX,
    ),
    *forward(
        _G,
        "put_ overwrite",
        lambda x, i, s: x.clone().put_(i, s),
        _x,
        _i,
        _s,
        dtypes=ALL_DTYPES,
        repeats=_MIX,
    ),
    *forward(
        _G, "scatter_add", lambda x, i, s: x.scatter_add(0, i, s), _x, _i, _s, dtypes=ALL_DTYPES, strided=True
    ),
    *forward(
        _G,
        "scatter_add dim 1",
        lambda x, i, s: x.scatter_add(1, i, s),
        normal(50, 64),
        integers(64, 50, 40_000),
        normal(50, 40_000),
    ),
    *forward(_G, "index_add", lambda x, i, s: x.index_add(0, i, s), _X, _I, _S, dtypes=ALL_DTYPES),
    *forward(_G, "index_add 1-D", lambda x, i, s: x.index_add(0, i, s), _x, _i, _s),
    *forward(_G, "scatter overwrite", lambda x, i, s: x.scatter(0, i, s), _x, _i, _s, repeats=_MIX),
    *forward(_G, "scatter value", lambda x, i: x.scatter(0, i, 2.0), _x, _i),
    *forward(_G, "index_copy", lambda x, i, s: x.index_copy(0, i, s), _x, _i, _s, repeats=_MIX),
    *forward(_G, "index_fill", lambda x, i: x.index_fill(0, i, 2.0), _x, _i),
    *forward(
        _G,
        "masked_scatter, masked_fill",
        lambda x, s: (x.masked_scatter(x > 0, s), x.masked_fill(x > 0, 3.0)),
        _s,
        mapped(torch.neg, _s),
    ),
    *(
        case
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for case in (
            *forward(
                _G,
                f"scatter_reduce {reduce}",
                lambda x, i, s, r=reduce: x.scatter_reduce(0, i, s, r),
                _x,
                _i,
                normal(N, scale=0.01, shift=1.0),
                dtypes=(F32, BF16),
            ),
            *(
                forward(
                    _G,
                    f"index_reduce {reduce}",
                    lambda x, i, s, r=reduce: x.index_reduce(0, i, s, r),
                    normal(1000, 16),
                    integers(1000, 65536),
                    normal(65536, 16, scale=0.01, shift=1.0),
                )
                if reduce != "sum"
                else ()
            ),
        )
    ),
    *backward(_G, "gather", lambda x, i: x.gather(0, i), _x, _i, dtypes=ALL_DTYPES),
    *backward(_G, "index_select", lambda x, i: x.index_select(0, i), _X, _I, dtypes=ALL_DTYPES),
    *backward(_G, "take", torch.take, _x, _i, repeats=_MIX),
    *backward(_G, "take_along_dim", lambda x, i: torch.take_along_dim(x, i, 0), _x, _i),
    *backward(_G, "repeat_interleave", lambda x: x.repeat_interleave(40, 0), _X),
    *backward(_G, "expand, tile", lambda x: (x.expand(30, 1000, 64), x.tile(20, 1)), _X),
    *backward(_G, "Tensor.unfold", lambda x: x.unfold(0, 64, 3), normal(200_000)),
    *backward(_G, "as_strided, overlapping", lambda x: x.as_strided((1000, 2000), (500, 1)), normal(N)),
    *backward(_G, "roll, flip, cat", lambda x: torch.cat([x.roll(3, 0), x.flip(0), x]), normal(100_003)),
    *backward(_G, "embedding", F.embedding, integers(5000, 20_000), _table, dtypes=ALL_DTYPES),
    *backward(_G, "embedding, 3 rows", F.embedding, integers(3, 50_000), normal(3, 64)),
    *backward(
        _G,
        "embedding scale_grad_by_freq, padding",
        lambda i, w: F.embedding(i, w, padding_idx=3, scale_grad_by_freq=True),
        integers(5000, 20_000),
        _table,
    ),
    *(
        case
        for mode in ("sum", "mean", "max")
        for case in backward(
            _G,
            f"embedding_bag {mode}",
            lambda i, w, m=mode: F.embedding_bag(i, w, mode=m),
            _bags,
            _table,
            dtypes=(F32, BF16),
        )
    ),
    *backward(
        _G,
        "embedding_bag, weights",
        lambda i, w, s: F.embedding_bag(i, w, mode="sum", per_sample_weights=s),
        _bags,
        _table,
        normal(4000, 10),
    ),
    *(
        case
        for reduce in ("sum", "mean", "max", "prod")
        for case in backward(
            _G,
            f"segment_reduce {reduce}",
            lambda x, r=reduce: torch.segment_reduce(x, r, lengths=torch.full((1024,), 1024)),
            normal(N, scale=0.01, shift=1.0),
        )
    ),
    *(
        case
        for n in (1, 2, 3)
        for case in backward(
            _G,
            f"max_unpool{n}d, duplicates",
            lambda x, i, n=n: getattr(F, f"max_unpool{n}d")(x, i, 2),
            *(
                normal(4, 16, *[(16384, 128, 24)[n - 1]] * n),
                integers((16384, 128, 24)[n - 1] ** n, 4, 16, *[(16384, 128, 24)[n - 1]] * n),
            ),
            repeats=_MIX,
        )
    ),
)
