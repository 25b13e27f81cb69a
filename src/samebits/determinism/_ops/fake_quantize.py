"""Fake quantization by channel: torch's kernel, but for zero points that are no integers.

q = round(x (1 / scale)) + zero point, to nearest even, bounded; the result is (q - zero point) scale. With a
zero point that is no integer the product is added to it before it is rounded, which the compiler may fuse.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from samebits.determinism._replacement import NotCoveredError, or_torchs, replacements


def _by_channel(self: Tensor, scale: Tensor, zero_point: Tensor, *_bounds: Any) -> None:
    if zero_point.is_floating_point():
        op = "aten::fake_quantize_per_channel_affine_cachemask"
        raise NotCoveredError(
            op, "with zero points of floating point", "Round them: zero_point.round().int()"
        )


REPLACEMENTS = replacements(
    ["fake_quantize_per_channel_affine_cachemask"],
    or_torchs(_by_channel, ()),
    "torch's kernel for integers, whose operations are not fused; other zero points raise",
)
