"""Losses over 10^6 elements, mean and sum reduced, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn import functional as F

from samebits.audit._review.case import (
    ALL_DTYPES,
    Input,
    ReviewCase,
    backward,
    forward,
    integers,
    mapped,
    normal,
    positive,
)

BIG = 1_000_003
_G = "losses"
_x, _y = normal(BIG), normal(BIG, scale=0.5, shift=0.1)
_probability = mapped(torch.sigmoid, normal(BIG))
_sign = mapped(lambda i: i.float() * 2 - 1, integers(2, BIG))
_rows, _classes = mapped(lambda x: x.log_softmax(1), normal(20_000, 100)), integers(100, 20_000)


def _both(name: str, loss: Callable[..., Any], *inputs: Input, **options: Any) -> Iterator[ReviewCase]:
    for reduction in ("mean", "sum"):
        yield from backward(
            _G, f"{name} {reduction}", lambda *a, r=reduction: loss(*a, reduction=r), *inputs, **options
        )


CASES: tuple[ReviewCase, ...] = (
    *_both("mse_loss", F.mse_loss, _x, _y, dtypes=ALL_DTYPES),
    *_both("l1_loss", F.l1_loss, _x, _y, dtypes=ALL_DTYPES),
    *_both("smooth_l1_loss", F.smooth_l1_loss, _x, _y),
    *_both("huber_loss", F.huber_loss, _x, _y),
    *_both(
        "smooth_l1_loss, beta 0.7",
        lambda x, y, reduction: F.smooth_l1_loss(x, y, beta=0.7, reduction=reduction),
        _x,
        _y,
        dtypes=ALL_DTYPES,
    ),
    *_both(
        "huber_loss, delta 0.7",
        lambda x, y, reduction: F.huber_loss(x, y, delta=0.7, reduction=reduction),
        _x,
        _y,
        dtypes=ALL_DTYPES,
    ),
    *_both("binary_cross_entropy", F.binary_cross_entropy, _probability, mapped(torch.sigmoid, _y)),
    *_both(
        "binary_cross_entropy_with_logits",
        F.binary_cross_entropy_with_logits,
        _x,
        mapped(torch.sigmoid, _y),
        dtypes=ALL_DTYPES,
    ),
    *_both("kl_div", F.kl_div, _rows, mapped(lambda x: x.softmax(1), normal(20_000, 100, scale=2.0))),
    *_both("cross_entropy, indices", F.cross_entropy, normal(20_000, 100), _classes, dtypes=ALL_DTYPES),
    *_both(
        "cross_entropy, weights",
        lambda x, w, i, reduction: F.cross_entropy(x, i, w.detach(), reduction=reduction),
        normal(20_000, 100),
        positive(100),
        _classes,
    ),
    *_both(
        "cross_entropy, label smoothing",
        lambda x, i, reduction: F.cross_entropy(x, i, label_smoothing=0.1, reduction=reduction),
        normal(20_000, 100),
        _classes,
    ),
    *_both(
        "cross_entropy, soft labels",
        F.cross_entropy,
        normal(20_000, 100),
        mapped(lambda x: x.softmax(1), normal(20_000, 100)),
    ),
    *_both("cross_entropy, 2 classes", F.cross_entropy, normal(200_003, 2), integers(2, 200_003)),
    *_both(
        "nll_loss 2-D",
        F.nll_loss,
        mapped(lambda x: x.log_softmax(1), normal(8, 10, 256, 256)),
        integers(10, 8, 256, 256),
    ),
    *_both(
        "soft_margin_loss",
        lambda x, y, reduction: F.soft_margin_loss(x, y.detach(), reduction=reduction),
        _x,
        _sign,
    ),
    *_both("hinge_embedding_loss", F.hinge_embedding_loss, _x, _sign),
    *_both("poisson_nll_loss", F.poisson_nll_loss, _x, positive(BIG)),
    *_both("gaussian_nll_loss", F.gaussian_nll_loss, _x, _y, positive(BIG)),
    *_both("multi_margin_loss", F.multi_margin_loss, normal(20_000, 100), _classes),
    *_both("multilabel_margin_loss", F.multilabel_margin_loss, normal(1000, 100), integers(100, 1000, 100)),
    *_both(
        "multilabel_soft_margin_loss",
        F.multilabel_soft_margin_loss,
        normal(20_000, 100),
        mapped(lambda i: i.float(), integers(2, 20_000, 100)),
    ),
    *_both("margin_ranking_loss", F.margin_ranking_loss, _x, _y, _sign),
    *_both(
        "cosine_embedding_loss",
        F.cosine_embedding_loss,
        normal(20_000, 50),
        normal(20_000, 50, shift=0.1),
        mapped(lambda i: i * 2 - 1, integers(2, 20_000)),
    ),
    *_both(
        "triplet_margin_loss",
        F.triplet_margin_loss,
        normal(20_000, 50),
        normal(20_000, 50, shift=0.1),
        normal(20_000, 50, shift=-0.1),
    ),
    *forward(
        _G,
        "kl_div batchmean",
        lambda a, b: F.kl_div(a, b, reduction="batchmean"),
        _rows,
        mapped(lambda x: x.softmax(1), normal(20_000, 100)),
    ),
    *backward(
        _G,
        "ctc_loss",
        lambda x, t: F.ctc_loss(x, t, torch.full((32,), 200), torch.full((32,), 30)),
        mapped(lambda x: x.log_softmax(2), normal(200, 32, 50)),
        mapped(lambda i: i + 1, integers(49, 32, 30)),
    ),
)
