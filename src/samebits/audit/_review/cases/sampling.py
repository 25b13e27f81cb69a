"""Pools, interpolation, grid sampling and padding, with gradients."""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional as F

from samebits.audit._review.case import BF16, F32, ReviewCase, backward, mapped, normal

_G = "pooling and sampling"
_BOTH = (F32, BF16)
_image, _volume, _line = normal(8, 32, 64, 64), normal(4, 8, 16, 32, 32), normal(8, 32, 4000)
_grid = mapped(torch.tanh, normal(4, 150, 150, 2))


def _pool(name: str, x: torch.Tensor) -> torch.Tensor:
    pool = getattr(F, name)
    if name.startswith("adaptive"):
        return pool(x, 7)
    return pool(x, 2, 3, 2) if name.startswith("lp") else pool(x, 3, 2)


CASES: tuple[ReviewCase, ...] = (
    *(
        case
        for n, x in ((1, _line), (2, _image), (3, _volume))
        for kind in ("max", "avg", "adaptive_avg", "adaptive_max", "lp")
        for name in (f"{kind}_pool{n}d",)
        for case in backward(
            _G,
            name,
            partial(_pool, name),
            x,
            dtypes=(F32,)
            if name in ("avg_pool3d", "lp_pool3d")
            else _BOTH,  # torch has no bfloat16 kernel there
        )
    ),
    *backward(
        _G,
        "max_pool2d channels last",
        lambda x: F.max_pool2d(x.to(memory_format=torch.channels_last), 3, 2),
        _image,
        strided=True,
    ),
    *backward(_G, "adaptive_avg_pool2d to 1x1", lambda x: F.adaptive_avg_pool2d(x, 1), _image, dtypes=_BOTH),
    *backward(
        _G, "adaptive_avg_pool2d of one map", lambda x: F.adaptive_avg_pool2d(x, 1), normal(1, 1, 1000, 1001)
    ),
    *backward(
        _G, "fractional_max_pool2d", lambda x: F.fractional_max_pool2d(x, 2, output_size=(31, 31)), _image
    ),
    *backward(
        _G, "fractional_max_pool3d", lambda x: F.fractional_max_pool3d(x, 2, output_size=(7, 15, 15)), _volume
    ),
    *(
        case
        for mode in ("nearest", "nearest-exact", "bilinear", "bicubic", "area")
        for case in backward(
            _G,
            f"interpolate {mode}",
            lambda x, m=mode: F.interpolate(x, size=(200, 200), mode=m),
            normal(4, 16, 64, 64),
            dtypes=_BOTH,
        )
    ),
    *(
        case
        for mode in ("bilinear", "bicubic")
        for case in backward(
            _G,
            f"interpolate {mode} antialias, smaller",
            lambda x, m=mode: F.interpolate(x, size=(30, 30), mode=m, antialias=True),
            normal(4, 16, 128, 128),
        )
    ),
    *backward(_G, "interpolate linear", lambda x: F.interpolate(x, size=9001, mode="linear"), _line),
    *backward(
        _G,
        "interpolate trilinear",
        lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"),
        normal(2, 8, 16, 32, 32),
    ),
    *backward(
        _G, "interpolate nearest 3-D", lambda x: F.interpolate(x, scale_factor=2), normal(2, 8, 16, 32, 32)
    ),
    *(
        case
        for mode in ("bilinear", "bicubic", "nearest")
        for case in backward(
            _G,
            f"grid_sample {mode}",
            lambda x, g, m=mode: F.grid_sample(x, g, mode=m, align_corners=False),
            normal(4, 16, 64, 64),
            _grid,
        )
    ),
    *backward(
        _G,
        "grid_sample 3-D",
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        normal(2, 4, 16, 32, 32),
        mapped(torch.tanh, normal(2, 32, 32, 32, 3)),
    ),
    *backward(
        _G,
        "affine_grid",
        lambda x, t: F.grid_sample(
            x, F.affine_grid(t, [4, 16, 64, 64], align_corners=False), align_corners=False
        ),
        normal(4, 16, 64, 64),
        normal(4, 2, 3),
    ),
    *(
        case
        for mode in ("reflect", "replicate", "circular", "constant")
        for case in backward(
            _G,
            f"pad {mode} 2-D",
            lambda x, m=mode: F.pad(x, (5, 5, 5, 5), mode=m),
            normal(8, 16, 64, 64),
            dtypes=_BOTH,
        )
    ),
    *(
        case
        for mode in ("reflect", "replicate")
        for case in (
            *backward(_G, f"pad {mode} 1-D", lambda x, m=mode: F.pad(x, (50, 50), mode=m), _line),
            *backward(_G, f"pad {mode} 3-D", lambda x, m=mode: F.pad(x, (3, 3, 3, 3, 3, 3), mode=m), _volume),
        )
    ),
    *backward(
        _G,
        "pixel_shuffle, channel_shuffle",
        lambda x: (F.pixel_shuffle(x, 2), F.channel_shuffle(x, 4)),
        _image,
    ),
)
