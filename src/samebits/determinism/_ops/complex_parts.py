"""Size, angle and sign of complex numbers: of their parts, by the functions of real ones.

abs is hypot, angle atan2, polar(r, t) r cos(t) + r sin(t) i, and sgn z / |z| (0 for 0).
"""

from __future__ import annotations

import torch
from torch import Tensor

from samebits.determinism._replacement import or_torchs, replacements


def _abs(self: Tensor, *, out: Tensor | None = None) -> Tensor | None:
    return torch.hypot(self.real, self.imag) if self.is_complex() else None


def _angle(self: Tensor, *, out: Tensor | None = None) -> Tensor | None:
    return torch.atan2(self.imag, self.real) if self.is_complex() else None


def _sgn(self: Tensor, *, out: Tensor | None = None) -> Tensor | None:
    if not self.is_complex():
        return None
    size = self.abs()
    return torch.where(size == 0, torch.zeros((), dtype=self.dtype), self / size)


def _sgn_in_place(self: Tensor) -> Tensor | None:
    result = _sgn(self)
    return None if result is None else self.copy_(result)


def _polar(abs: Tensor, angle: Tensor, *, out: Tensor | None = None) -> Tensor | None:  # noqa: A002 (torch's)
    if not abs.is_floating_point() or abs.dtype != angle.dtype:
        return None
    return torch.complex(abs * angle.cos(), abs * angle.sin())


_REASON = "torch's vector code has its own functions of complex numbers: ours are of their parts"

REPLACEMENTS = (
    *replacements(["abs.out"], or_torchs(_abs), _REASON),
    *replacements(["angle", "angle.out"], or_torchs(_angle), _REASON),
    *replacements(["sgn", "sgn.out"], or_torchs(_sgn), _REASON),
    *replacements(["sgn_"], or_torchs(_sgn_in_place), _REASON),
    *replacements(["polar.out"], or_torchs(_polar), _REASON),
)
