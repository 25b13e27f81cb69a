"""The types of tensors that the kernels of `across="machines"` take, and the error for the others."""

from __future__ import annotations

import torch

from samebits.determinism._arithmetic.reductions.tensors import MEMORY
from samebits.determinism._machine_invariant.refusal import unsupported

_CURE = (
    'Use real numbers, or run this part inside `with samebits.enable_op_determinism(across="threads"):`, where the same '
    "bits are promised on one model of CPU"
)


def takes(op: str, *dtypes: torch.dtype) -> bool:
    """Returns True if the types are such as our kernels read, False for integers, which torch's kernel adds exactly.

    Raises:
        UnimplementedError: complex numbers, or floating point of 8 bits.
    """
    for dtype in dtypes:
        if dtype not in MEMORY:
            if dtype.is_complex or dtype.is_floating_point:
                unsupported(f"aten::{op}", f"of {str(dtype).removeprefix('torch.')}", _CURE)
            return False
    return True
