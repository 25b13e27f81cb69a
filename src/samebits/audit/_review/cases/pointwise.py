"""Pointwise ops at 200,003 elements: the tail that does not fill a vector moves with the chunks of threads."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from samebits.audit._review.case import ALL_DTYPES, ReviewCase, backward, forward, normal, positive

TAIL, BIG = 200_003, 1_000_003
_G = "pointwise"


def _foreach(a: torch.Tensor, b: torch.Tensor) -> list[torch.Tensor]:
    ins = [a, b, a[1:]]
    return [
        *torch._foreach_add(ins, 1.5),
        *torch._foreach_mul(ins, ins),
        *torch._foreach_sqrt(torch._foreach_abs(ins)),
        *torch._foreach_addcmul(ins, ins, torch._foreach_neg(ins), 0.7),
        *torch._foreach_addcdiv(ins, ins, torch._foreach_exp(ins), 0.1),
        *torch._foreach_lerp(ins, torch._foreach_neg(ins), 0.3),
        *torch._foreach_norm(ins),
        *torch._foreach_norm(ins, 1),
        *torch._foreach_pow(torch._foreach_abs(ins), 1.7),
    ]


CASES: tuple[ReviewCase, ...] = (
    *forward(
        _G,
        "exp, tanh, gelu, sin at 1000003",
        lambda x: (x.exp(), x.tanh(), F.gelu(x), x.sin()),
        normal(BIG),
        dtypes=ALL_DTYPES,
    ),
    *forward(
        _G,
        "at an odd offset",
        lambda x: (x[1:].exp(), x[3:].log1p(), x[5:].pow(1.7)),
        normal(TAIL),
        dtypes=ALL_DTYPES,
    ),
    *forward(
        _G,
        "non-contiguous rows",
        lambda x: (x[:, 1:].exp(), x[:, 3:].sigmoid(), x.t().tanh()),
        normal(449, 447),
        dtypes=ALL_DTYPES,
    ),
    *forward(
        _G,
        "broadcast",
        lambda x, y: (x * y, torch.atan2(x, y), torch.pow(y, x), x / y),
        normal(447),
        positive(449, 1),
        dtypes=ALL_DTYPES,
    ),
    *forward(
        _G,
        "casts",
        lambda x: (x.float(), x.bfloat16(), x.half(), x.double(), x.long()),
        normal(BIG),
        dtypes=ALL_DTYPES,
    ),
    *forward(
        _G,
        "addcmul, addcdiv, lerp, where",
        lambda x, y: (
            torch.addcmul(x, x, y, value=0.7),
            torch.addcdiv(x, x, y, value=-1.3),
            torch.lerp(x, y, 0.3),
            torch.where(x > 0, x, y),
        ),
        normal(TAIL),
        positive(TAIL),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G,
        "activations",
        lambda x: (
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            F.silu(x),
            F.mish(x),
            F.softplus(x),
            F.elu(x),
            F.selu(x),
            F.celu(x),
            F.hardswish(x),
            F.logsigmoid(x),
            F.leaky_relu(x),
        ),
        normal(TAIL),
        dtypes=ALL_DTYPES,
        strided=True,
    ),
    *backward(
        _G,
        "glu, prelu",
        lambda x, w: (F.glu(x), F.prelu(x, w)),
        normal(400, 1002),
        normal(1002),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G,
        "broadcast gradients",
        lambda x, b, c: x * b + c,
        normal(4001, 257),
        normal(257),
        normal(4001, 1),
        dtypes=ALL_DTYPES,
    ),
    *backward(_G, "scalar gradient", lambda x, s: x * s, normal(BIG), normal(1), dtypes=ALL_DTYPES),
    *forward(
        _G,
        "foreach with an alpha",
        lambda a, b: (*torch._foreach_add([a], [b], alpha=0.7), *torch._foreach_sub([a], [b], alpha=-1.3)),
        normal(TAIL),
        positive(TAIL),
        dtypes=ALL_DTYPES,
    ),
    *forward(_G, "foreach", _foreach, normal(TAIL), normal(1000, 301), dtypes=ALL_DTYPES),
    *forward(
        _G,
        "complex",
        lambda x: (
            torch.polar(x.abs(), x),
            torch.complex(x, x).exp(),
            torch.complex(x, x).abs(),
            torch.complex(x, -x).angle(),
        ),
        normal(TAIL),
    ),
)
