"""Normalisation layers with the gradients of input, weight and bias."""

from __future__ import annotations

from torch.nn import functional as F

from samebits.audit._review.case import ALL_DTYPES, BF16, F32, ReviewCase, backward, forward, normal

_G = "normalisation"
_image = normal(16, 64, 48, 48)

CASES: tuple[ReviewCase, ...] = (
    *(
        case
        for rows, width in ((1500, 768), (65536, 16), (3, 200_003), (1, 1_000_003))
        for case in backward(
            _G,
            f"layer_norm {rows}x{width}",
            lambda x, w, b, width=width: F.layer_norm(x, (width,), w, b),
            *(normal(rows, width), normal(width), normal(width)),
            dtypes=ALL_DTYPES,
        )
    ),
    *backward(
        _G,
        "layer_norm strided",
        lambda x, w, b: F.layer_norm(x, (256,), w, b),
        normal(3000, 256),
        normal(256),
        normal(256),
        strided=True,
    ),
    *backward(
        _G, "layer_norm without bias", lambda x, w: F.layer_norm(x, (256,), w), normal(5003, 256), normal(256)
    ),
    *backward(
        _G,
        "group_norm",
        lambda x, w, b: F.group_norm(x, 8, w, b),
        normal(8, 64, 64, 64),
        normal(64),
        normal(64),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G,
        "group_norm of one sample",
        lambda x, w, b: F.group_norm(x, 1, w, b),
        normal(1, 4, 400, 400),
        normal(4),
        normal(4),
    ),
    *backward(
        _G,
        "batch_norm 2-D, training",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        _image,
        normal(64),
        normal(64),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G,
        "batch_norm 2-D of 2 channels",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        normal(8, 2, 300, 300),
        normal(2),
        normal(2),
        dtypes=(F32, BF16),
    ),
    *backward(
        _G,
        "batch_norm 1-D",
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
        normal(65536, 32),
        normal(32),
        normal(32),
    ),
    *backward(
        _G,
        "batch_norm, evaluation",
        lambda x, m, v, w, b: F.batch_norm(x, m.detach(), v.detach().abs() + 1, w, b),
        _image,
        normal(64),
        normal(64),
        normal(64),
        normal(64),
    ),
    *backward(
        _G,
        "instance_norm",
        lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
        _image,
        normal(64),
        normal(64),
    ),
    *backward(
        _G,
        "rms_norm 1500x768",
        lambda x, w: F.rms_norm(x, (768,), w),
        normal(1500, 768),
        normal(768),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G, "rms_norm of 65536 rows", lambda x, w: F.rms_norm(x, (16,), w), normal(65536, 16), normal(16)
    ),
    *backward(_G, "local_response_norm", lambda x: F.local_response_norm(x, 5), normal(8, 16, 48, 48)),
    *backward(_G, "normalize", F.normalize, normal(4000, 300)),
    *backward(
        _G,
        "weight_norm",
        lambda v, g: F.linear(v[:9], v * (g / v.norm(dim=1, keepdim=True))),
        normal(600, 700),
        normal(600, 1),
    ),
    *forward(
        _G, "batch_norm forward", lambda x: F.batch_norm(x, None, None, training=True), _image, strided=True
    ),
)
