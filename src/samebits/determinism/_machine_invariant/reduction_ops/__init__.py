"""Sums and what is made of them, and places between elements: the kernels of the mode."""

from __future__ import annotations

from samebits.determinism._machine_invariant.reduction_ops import (
    batch_norm,
    grids,
    group_norm,
    layer_norm,
    likelihood_loss,
    norms,
    other_losses,
    softmax,
    sums,
)

REPLACEMENTS = (
    *batch_norm.REPLACEMENTS,
    *grids.REPLACEMENTS,
    *group_norm.REPLACEMENTS,
    *layer_norm.REPLACEMENTS,
    *likelihood_loss.REPLACEMENTS,
    *norms.REPLACEMENTS,
    *other_losses.REPLACEMENTS,
    *softmax.REPLACEMENTS,
    *sums.REPLACEMENTS,
)
