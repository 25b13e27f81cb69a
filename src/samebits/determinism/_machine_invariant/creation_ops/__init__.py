"""Numbers that come from no tensor: the kernels of the mode."""

from __future__ import annotations

from samebits.determinism._machine_invariant.creation_ops import draws, sequences

REPLACEMENTS = (
    *draws.REPLACEMENTS,
    *sequences.REPLACEMENTS,
)
