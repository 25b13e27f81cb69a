"""Attention by each backend that a GPU has, and other sums that are split there: cases that the review has not on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lab.catalogue.case import ALL_DTYPES, BF16, F32, ReviewCase, backward, forward, integers, normal

_G = "attention on a GPU"
_BACKENDS = {
    "flash": (SDPBackend.FLASH_ATTENTION, (BF16,)),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, (BF16, F32)),
    "cuDNN": (SDPBackend.CUDNN_ATTENTION, (BF16,)),
    "math": (SDPBackend.MATH, (BF16, F32)),
}


def _by(backend: SDPBackend, *, causal: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attend


def _attentions() -> Iterator[ReviewCase]:
    for name, (backend, dtypes) in _BACKENDS.items():
        for causal in (False, True):
            attend = _by(backend, causal=causal)
            title = f"{name}{' causal' if causal else ''}"
            yield from backward(
                _G, f"{title} 4x8x1024x64", attend, *[normal(4, 8, 1024, 64)] * 3, dtypes=dtypes
            )
        short = (normal(1, 2, 16, 64), normal(1, 2, 8192, 64), normal(1, 2, 8192, 64))
        yield from backward(
            _G, f"{name} 16 queries, 8192 keys", _by(backend, causal=False), *short, dtypes=dtypes
        )


def _lstm(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    start = x.new_zeros(2, x.shape[1], 64)
    return torch.lstm(x, (start, start), list(weights), True, 1, 0.2, True, True, False)


_gates = (normal(256, 64), normal(256, 64), normal(256), normal(256))

CASES: tuple[ReviewCase, ...] = (
    *_attentions(),
    *backward(_G, "LSTM, both directions, dropout", _lstm, normal(50, 32, 64), *_gates, *_gates, dtypes=(F32, BF16)),
    *forward(_G, "bmm 2x16x65536x16", torch.bmm, normal(2, 16, 65536), normal(2, 65536, 16), dtypes=ALL_DTYPES),
    *backward(_G, "index_add into 8 rows", lambda x, i, s: x.index_add(0, i, s), normal(8, 4), integers(8, 1 << 18), normal(1 << 18, 4)),
    *backward(_G, "scatter_add into 8 places", lambda x, i, s: x.scatter_add(0, i, s), normal(8), integers(8, 1 << 20), normal(1 << 20)),
    *backward(_G, "embedding of 4 words", F.embedding, integers(4, 1 << 18), normal(4, 32), dtypes=(F32, BF16)),
    *forward(_G, "cumprod of one row", lambda x: x.cumprod(0), normal(1 << 20, scale=0.01, shift=1.0), dtypes=ALL_DTYPES),
    *forward(_G, "logcumsumexp of one row", lambda x: x.logcumsumexp(0), normal(1 << 20), dtypes=ALL_DTYPES),
    *forward(_G, "ties: topk, sort, median", lambda x: (*x.topk(9), *x.sort(), x.median(), x.sort(stable=True).indices), lambda dtype: (normal(256, 4096)(dtype) * 2).round()),
)  # fmt: skip
