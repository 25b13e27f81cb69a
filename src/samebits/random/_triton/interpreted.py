"""Arithmetic that Triton's interpreter lacks, by the CPU's own instruction."""

from __future__ import annotations

from typing import Any

from samebits._native import kernel, vectors

_fma = vectors.fma


@kernel
def fill_fused(a: Any, b: Any, c: Any, out: Any) -> None:
    """Writes a b + c, rounded once, of arrays of one dimension."""
    for i in range(out.size):
        out[i] = _fma(a[i], b[i], c[i])
