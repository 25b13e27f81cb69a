"""Products of matrices and what is made of them: the kernels of the mode."""

from __future__ import annotations

from samebits.determinism._machine_invariant.linear_ops import (
    attention,
    convolution,
    embedding_bag,
    lstm_layers,
    products,
    sparse_products,
)

REPLACEMENTS = (
    *attention.REPLACEMENTS,
    *convolution.REPLACEMENTS,
    *embedding_bag.REPLACEMENTS,
    *lstm_layers.REPLACEMENTS,
    *products.REPLACEMENTS,
    *sparse_products.REPLACEMENTS,
)
