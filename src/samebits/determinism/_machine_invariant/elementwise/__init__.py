"""Elementwise ops by our own functions: each element's bits depend on its value alone."""

from __future__ import annotations

from samebits.determinism._machine_invariant.elementwise import (
    activation_ops,
    arithmetic_ops,
    fused_optimizers,
    loss_ops,
    unary_ops,
)

REPLACEMENTS = (
    *unary_ops.REPLACEMENTS,
    *activation_ops.REPLACEMENTS,
    *arithmetic_ops.REPLACEMENTS,
    *loss_ops.REPLACEMENTS,
    *fused_optimizers.REPLACEMENTS,
)
