"""Random numbers of a seeded generator: the way they are distributed over threads must not matter."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from samebits.audit._review.case import ALL_DTYPES, ReviewCase, backward, forward, normal

BIG, N = 1_000_003, 1 << 20
_G = "random"
_x = normal(BIG)

CASES: tuple[ReviewCase, ...] = (
    *forward(
        _G,
        "rand, randn, randint, randperm",
        lambda x: (torch.rand_like(x), torch.randn_like(x), torch.randint(9, x.shape), torch.randperm(N)),
        _x,
        dtypes=ALL_DTYPES,
    ),
    *forward(
        _G,
        "bernoulli_",
        lambda x: (torch.empty_like(x).bernoulli_(0.3), torch.bernoulli(x.sigmoid())),
        _x,
        dtypes=ALL_DTYPES,
    ),
    *forward(
        _G,
        "exponential_, cauchy_, log_normal_, geometric_",
        lambda x: (
            torch.empty_like(x).exponential_(),
            torch.empty_like(x).cauchy_(),
            torch.empty_like(x).log_normal_(),
            torch.empty_like(x).geometric_(0.3),
        ),
        normal(N),
    ),
    *forward(
        _G,
        "poisson, gamma, binomial, dirichlet",
        lambda x: (
            torch.poisson(x.abs()),
            torch._standard_gamma(x.abs() + 0.1),
            torch.binomial(torch.full_like(x, 10.0), x.sigmoid()),
            torch._sample_dirichlet(x[:1000].abs() + 0.1),
        ),
        normal(100_000),
    ),
    *forward(
        _G,
        "multinomial",
        lambda x: (torch.multinomial(x.abs(), 500), torch.multinomial(x.abs(), 5000, replacement=True)),
        normal(100_000),
    ),
    *backward(
        _G,
        "dropout, alpha_dropout, feature dropout",
        lambda x: (
            F.dropout(x),
            F.alpha_dropout(x, training=True),
            F.dropout2d(x[: 1 << 19].view(8, 64, 32, 32)),
        ),
        _x,
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G,
        "rrelu, gumbel_softmax",
        lambda x: (F.rrelu(x, training=True), F.gumbel_softmax(x.view(-1, 100))),
        normal(N // 100 * 100),
    ),
    *forward(
        _G,
        "nn.init",
        lambda _x: (
            torch.nn.init.orthogonal_(torch.empty(200, 100)),
            torch.nn.init.trunc_normal_(torch.empty(N)),
            torch.nn.init.kaiming_uniform_(torch.empty(1000, 1000)),
        ),
        _x,
    ),
)
