"""The battery's own cases, by group."""

from __future__ import annotations

from samebits.audit._review.case import ReviewCase
from samebits.audit._review.cases import (
    attention,
    compiled,
    conv,
    drawing,
    indexing,
    losses,
    matmul,
    norms,
    pointwise,
    reductions,
    sampling,
    sparse,
    spectral,
    training,
)

BATTERY: tuple[ReviewCase, ...] = (
    *compiled.CASES,
    *training.CASES,
    *attention.CASES,
    *conv.CASES,
    *matmul.CASES,
    *reductions.CASES,
    *norms.CASES,
    *losses.CASES,
    *indexing.CASES,
    *spectral.CASES,
    *sampling.CASES,
    *sparse.CASES,
    *pointwise.CASES,
    *drawing.CASES,
)
