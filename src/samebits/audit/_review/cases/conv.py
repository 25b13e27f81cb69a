"""Convolutions with all gradients: 1-D to 3-D, transposed, depthwise, grouped, strided and dilated."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from samebits.audit._review.case import ALL_DTYPES, BF16, F32, ReviewCase, backward, forward, normal

_G = "convolution"
_image, _kernel = normal(8, 32, 64, 64), normal(64, 32, 3, 3)


def _channels_last(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.conv2d(
        x.to(memory_format=torch.channels_last), w.to(memory_format=torch.channels_last), padding=1
    )


CASES: tuple[ReviewCase, ...] = (
    *forward(
        _G, "conv2d 8x32x64x64 forward", lambda x, w: F.conv2d(x, w, padding=1), _image, _kernel, strided=True
    ),
    *forward(_G, "conv2d of one image forward", F.conv2d, normal(1, 32, 64, 64), _kernel, dtypes=ALL_DTYPES),
    *backward(
        _G,
        "conv2d 8x32x64x64",
        lambda x, w, b: F.conv2d(x, w, b, padding=1),
        _image,
        _kernel,
        normal(64),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G, "conv2d of one image", F.conv2d, normal(1, 32, 64, 64), _kernel, normal(64), dtypes=(F32, BF16)
    ),
    *backward(_G, "conv2d of 5 images", F.conv2d, normal(5, 16, 50, 50), normal(24, 16, 3, 3), normal(24)),
    *backward(
        _G,
        "conv2d of 3 channels, first layer",
        F.conv2d,
        normal(16, 3, 64, 64),
        normal(32, 3, 7, 7),
        normal(32),
    ),
    *backward(
        _G,
        "conv2d 1x1",
        F.conv2d,
        normal(8, 64, 48, 48),
        normal(128, 64, 1, 1),
        normal(128),
        dtypes=(F32, BF16),
    ),
    *backward(_G, "conv2d stride 2", lambda x, w: F.conv2d(x, w, stride=2, padding=1), _image, _kernel),
    *backward(_G, "conv2d dilated", lambda x, w: F.conv2d(x, w, dilation=2), _image, _kernel),
    *backward(_G, "conv2d channels last", _channels_last, _image, _kernel, dtypes=(F32, BF16)),
    *backward(
        _G,
        "conv2d depthwise",
        lambda x, w: F.conv2d(x, w, groups=64),
        normal(8, 64, 64, 64),
        normal(64, 1, 3, 3),
        dtypes=(F32, BF16),
    ),
    *backward(
        _G,
        "conv2d 4 groups",
        lambda x, w, b: F.conv2d(x, w, b, groups=4),
        _image,
        normal(64, 8, 3, 3),
        normal(64),
        dtypes=(F32, BF16),
    ),
    *backward(
        _G,
        "conv1d 16x64x1000",
        F.conv1d,
        normal(16, 64, 1000),
        normal(64, 64, 5),
        normal(64),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G, "conv1d depthwise", lambda x, w: F.conv1d(x, w, groups=64), normal(16, 64, 1000), normal(64, 1, 5)
    ),
    *backward(
        _G,
        "conv3d 2x8x16x32x32",
        F.conv3d,
        normal(2, 8, 16, 32, 32),
        normal(16, 8, 3, 3, 3),
        normal(16),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G,
        "conv_transpose1d",
        F.conv_transpose1d,
        normal(16, 64, 500),
        normal(64, 32, 4),
        normal(32),
        dtypes=(F32, BF16),
    ),
    *backward(
        _G,
        "conv_transpose2d stride 2",
        lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2),
        normal(8, 32, 32, 32),
        normal(32, 16, 3, 3),
        normal(16),
        dtypes=ALL_DTYPES,
    ),
    *backward(
        _G,
        "conv_transpose2d 2 groups",
        lambda x, w: F.conv_transpose2d(x, w, groups=2),
        normal(8, 32, 32, 32),
        normal(32, 8, 3, 3),
    ),
    *backward(_G, "conv_transpose3d", F.conv_transpose3d, normal(2, 8, 12, 20, 20), normal(8, 8, 3, 3, 3)),
    *backward(_G, "unfold (im2col)", lambda x: F.unfold(x, 3), normal(4, 16, 128, 128)),
    *backward(_G, "fold (col2im)", lambda x: F.fold(x, (66, 66), 3), normal(4, 144, 4096)),
)
