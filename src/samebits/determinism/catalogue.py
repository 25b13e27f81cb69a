"""Every replacement there is: what the switch installs and what the op table reads."""

from __future__ import annotations

from samebits.determinism import (
    attention,
    batchnorm,
    convolution,
    cuda,
    fourier,
    gated,
    groupnorm,
    lapack,
    layernorm,
    matmul,
    pointwise,
    recurrent,
    reductions,
    softmax,
    uninitialized,
    writes,
)
from samebits.determinism.replacement import Replacement

REPLACEMENTS: tuple[Replacement, ...] = (
    *attention.REPLACEMENTS,
    *batchnorm.REPLACEMENTS,
    *convolution.REPLACEMENTS,
    *fourier.REPLACEMENTS,
    *gated.REPLACEMENTS,
    *groupnorm.REPLACEMENTS,
    *lapack.REPLACEMENTS,
    *layernorm.REPLACEMENTS,
    *matmul.REPLACEMENTS,
    *pointwise.REPLACEMENTS,
    *recurrent.REPLACEMENTS,
    *reductions.REPLACEMENTS,
    *softmax.REPLACEMENTS,
    *uninitialized.REPLACEMENTS,
    *writes.REPLACEMENTS,
)
"""Those for the CPU."""


def every() -> tuple[Replacement, ...]:
    """Those for CUDA too, also what no GPU has verified: loads them."""
    return (*REPLACEMENTS, *cuda.written().values())
