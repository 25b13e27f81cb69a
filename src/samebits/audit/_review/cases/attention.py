"""Attention, recurrent layers, and transformer blocks, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

from samebits.audit._review.case import (
    ALL_DTYPES,
    BF16,
    F32,
    ReviewCase,
    Run,
    backward,
    forward,
    gradients,
    normal,
    placed,
)

_G = "attention and recurrence"
_heads = normal(4, 8, 256, 64)
_others = (normal(4, 8, 256, 64, shift=0.1), normal(4, 8, 256, 64, shift=-0.1))


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _layer(
    name: str, make: Callable[[], torch.nn.Module], shape: tuple[int, ...], dtype: torch.dtype
) -> Iterator[ReviewCase]:
    """A layer of torch.nn: its outputs and the gradients of input and parameters."""

    def build() -> Iterator[Run]:
        torch.manual_seed(0)
        module = placed(make().to(dtype))
        x = placed(normal(*shape)(dtype)).requires_grad_()

        def run() -> object:
            outputs = module(x)
            return outputs, gradients(outputs, [x, *module.parameters()])

        yield run

    yield ReviewCase(_G, f"{name} [{str(dtype).removeprefix('torch.')}]", build)


def _recurrent(kind: str) -> Iterator[ReviewCase]:
    for dtype in ALL_DTYPES:
        yield from _layer(f"{kind} 2x128", lambda: getattr(torch.nn, kind)(128, 128, 2), (25, 16, 128), dtype)


CASES: tuple[ReviewCase, ...] = (
    *forward(_G, "sdpa forward", _causal, _heads, *_others, dtypes=ALL_DTYPES),
    *backward(_G, "sdpa causal", _causal, _heads, *_others, dtypes=ALL_DTYPES),
    *backward(
        _G,
        "sdpa strided",
        _causal,
        normal(2, 4, 200, 64),
        normal(2, 4, 200, 64),
        normal(2, 4, 200, 64),
        strided=True,
    ),
    *backward(
        _G,
        "sdpa one query",
        F.scaled_dot_product_attention,
        normal(2, 8, 1, 64),
        normal(2, 8, 4096, 64),
        normal(2, 8, 4096, 64),
    ),
    *backward(
        _G, "sdpa mask", _masked, *[normal(2, 8, 130, 64)] * 3, normal(2, 1, 130, 130), dtypes=(F32, BF16)
    ),
    *backward(_G, "sdpa long", F.scaled_dot_product_attention, *[normal(1, 2, 2048, 32)] * 3),
    *_recurrent("LSTM"),
    *_recurrent("GRU"),
    *_recurrent("RNN"),
    *_layer(
        "LSTM bidirectional, projected",
        lambda: torch.nn.LSTM(64, 64, bidirectional=True, proj_size=32),
        (20, 16, 64),
        F32,
    ),
    *_layer("LSTMCell", lambda: torch.nn.LSTMCell(256, 256), (500, 256), F32),
    *_layer("GRUCell", lambda: torch.nn.GRUCell(256, 256), (500, 256), F32),
    *(
        case
        for dtype in (F32, BF16)
        for case in _layer(
            "TransformerEncoderLayer",
            lambda: torch.nn.TransformerEncoderLayer(256, 4, 512, 0.1, batch_first=True),
            (8, 128, 256),
            dtype,
        )
    ),
    *_layer(
        "TransformerEncoderLayer, evaluation",
        lambda: torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True).eval(),
        (8, 128, 256),
        F32,
    ),
)
