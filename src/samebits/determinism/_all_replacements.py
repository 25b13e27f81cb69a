"""Every replacement: the switch installs them, the op table reads them."""

from __future__ import annotations

from samebits.determinism import _cuda_loading as cuda_loading
from samebits.determinism._guards import uninitialized_memory
from samebits.determinism._kernels import convolution, grid_sample, indexed_writes, polynomials, upsample
from samebits.determinism._replacement import Replacement

REPLACEMENTS: tuple[Replacement, ...] = (
    *convolution.REPLACEMENTS,
    *grid_sample.REPLACEMENTS,
    *polynomials.REPLACEMENTS,
    *upsample.REPLACEMENTS,
    *uninitialized_memory.REPLACEMENTS,
    *indexed_writes.REPLACEMENTS,
)
"""Those for the CPU."""


def all_replacements() -> tuple[Replacement, ...]:
    """Returns those for CUDA too, also those that no GPU has verified: loads them."""
    return (*REPLACEMENTS, *cuda_loading.all_formulations().values())
