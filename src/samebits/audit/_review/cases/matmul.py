"""Matrix products: small M, narrow outputs, long K, batches, and the gradients of linear layers."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from samebits.audit._review.case import ALL_DTYPES, F32, F64, ReviewCase, backward, forward, normal

BIG = 1_000_003
_G = "matmul"
_SHAPES = (
    (512, 512, 512),
    (8, 4096, 4096),
    (64, 65536, 64),
    (10, 100_000, 64),
    (64, 100_000, 64),
    (16, 300_000, 16),
    (1, 100_000, 64),
    (128, 65536, 128),
    (64, 4096, 64),
    (512, 4096, 512),
    (1, 64, 200_003),
    (3, 7, 5000),
    (7, 64, 64),
    (10, 511, 512),
    (2, 4096, 129),
    (2, 200_003, 3),
    (1000, 1000, 1),
    (33, 1025, 257),
)

CASES: tuple[ReviewCase, ...] = (
    *(
        case
        for m, k, n in _SHAPES
        for case in forward(_G, f"mm {m}x{k}x{n}", torch.mm, normal(m, k), normal(k, n), dtypes=ALL_DTYPES)
    ),
    *(
        case
        for m, k, n in ((10, 100_000, 64), (7, 64, 64), (256, 1024, 512))
        for case in forward(
            _G,
            f"mm of transposed {m}x{k}x{n}",
            lambda a, b: a.t() @ b.t(),
            normal(k, m),
            normal(n, k),
            dtypes=ALL_DTYPES,
        )
    ),
    *forward(
        _G,
        "mm strided 300x4000x70",
        torch.mm,
        normal(300, 4000),
        normal(4000, 70),
        dtypes=(F32, F64),
        strided=True,
    ),
    *(
        case
        for m, k, n in ((10, 511, 512), (10, 100_000, 64), (7, 64, 64), (256, 1024, 512))
        for case in forward(
            _G, f"addmm {m}x{k}x{n}", torch.addmm, normal(n), normal(m, k), normal(k, n), dtypes=ALL_DTYPES
        )
    ),
    *forward(
        _G,
        "addmm of a matrix, beta and alpha",
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0),
        normal(10, 64),
        normal(10, 100_000),
        normal(100_000, 64),
        dtypes=ALL_DTYPES,
    ),
    *forward(_G, "mv 2048x2048", torch.mv, normal(2048, 2048), normal(2048), dtypes=ALL_DTYPES),
    *forward(
        _G,
        "mv of transposed 100000x64",
        lambda a, x: a.t() @ x,
        normal(100_000, 64),
        normal(100_000),
        dtypes=ALL_DTYPES,
    ),
    *forward(_G, "mv of one row", torch.mv, normal(1, 1_000_000), normal(1_000_000), dtypes=ALL_DTYPES),
    *forward(
        _G, "addmv 1000x3000", torch.addmv, normal(1000), normal(1000, 3000), normal(3000), dtypes=ALL_DTYPES
    ),
    *forward(_G, "dot", torch.dot, normal(BIG), normal(BIG, shift=0.1), dtypes=ALL_DTYPES, strided=True),
    *forward(
        _G,
        "vdot complex",
        lambda a, b: torch.vdot(torch.complex(a, b), torch.complex(b, a)),
        normal(BIG),
        normal(BIG, shift=0.1),
    ),
    *forward(
        _G,
        "outer, addr",
        lambda x, a, b: (a.outer(b), torch.addr(x, a, b), torch.addr(x, a, b, beta=0.7, alpha=0.3)),
        normal(1500, 1501),
        normal(1500),
        normal(1501),
    ),
    *forward(
        _G, "bmm 32x128x256x128", torch.bmm, normal(32, 128, 256), normal(32, 256, 128), dtypes=ALL_DTYPES
    ),
    *forward(
        _G, "bmm 4x10x50000x16", torch.bmm, normal(4, 10, 50_000), normal(4, 50_000, 16), dtypes=ALL_DTYPES
    ),
    *forward(_G, "bmm 1x10x511x512", torch.bmm, normal(1, 10, 511), normal(1, 511, 512), dtypes=ALL_DTYPES),
    *forward(_G, "bmm 3x2x4096x129", torch.bmm, normal(3, 2, 4096), normal(3, 4096, 129), dtypes=ALL_DTYPES),
    *forward(
        _G,
        "bmm of transposed",
        lambda a, b: torch.bmm(a.transpose(1, 2), b),
        normal(8, 700, 33),
        normal(8, 700, 65),
        dtypes=ALL_DTYPES,
    ),
    *forward(
        _G,
        "baddbmm 3x10x511x512",
        torch.baddbmm,
        normal(3, 10, 512),
        normal(3, 10, 511),
        normal(3, 511, 512),
        dtypes=ALL_DTYPES,
    ),
    *forward(
        _G,
        "addbmm",
        torch.addbmm,
        normal(10, 64),
        normal(4, 10, 30_000),
        normal(4, 30_000, 64),
        dtypes=ALL_DTYPES,
    ),
    *forward(
        _G,
        "einsum bij,bjk",
        lambda a, b: torch.einsum("bij,bjk->bik", a, b),
        normal(16, 128, 128),
        normal(16, 128, 128),
    ),
    *forward(
        _G,
        "einsum bi,bj to ij",
        lambda a, b: torch.einsum("bi,bj->ij", a, b),
        normal(65536, 10),
        normal(65536, 33),
    ),
    *forward(_G, "tensordot", lambda a, b: torch.tensordot(a, b, 2), normal(7, 300, 40), normal(300, 40, 20)),
    *forward(
        _G,
        "chain_matmul",
        lambda a, b, c: torch.linalg.multi_dot([a, b, c]),
        normal(10, 5000),
        normal(5000, 30),
        normal(30, 900),
    ),
    *forward(
        _G,
        "mm complex 10x20000x64",
        lambda a, b: torch.complex(a, a) @ torch.complex(b, -b),
        normal(10, 20_000),
        normal(20_000, 64),
        dtypes=(F32, F64),
    ),
    *forward(_G, "cdist p=2", torch.cdist, normal(500, 64), normal(600, 64)),
    *forward(
        _G,
        "linear of one vector 56->444",
        F.linear,
        normal(56),
        normal(444, 56),
        normal(444),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G,
        "linear 256x1024->1024",
        F.linear,
        normal(256, 1024),
        normal(1024, 1024),
        normal(1024),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G,
        "linear head 65536x64->10",
        F.linear,
        normal(65536, 64),
        normal(10, 64),
        normal(10),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G, "linear 3-D 32x512x256->256", F.linear, normal(32, 512, 256), normal(256, 256), normal(256)
    ),
    *backward(
        _G,
        "linear small 10x511->512",
        F.linear,
        normal(10, 511),
        normal(512, 511),
        normal(512),
        dtypes=ALL_DTYPES,
    ),
    *backward(_G, "bilinear", F.bilinear, normal(2000, 20), normal(2000, 30), normal(8, 20, 30), normal(8)),
    *backward(_G, "mm 7x64x64 with gradients", torch.mm, normal(7, 64), normal(64, 64), dtypes=ALL_DTYPES),
)
