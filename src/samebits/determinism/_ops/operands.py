"""The arguments that the kernels of `across="machines"` take, and that torch's kernels keep."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.reductions import MEMORY
from samebits.determinism._ops.coverage import INTEGERS, REAL
from samebits.determinism._replacement import NotCoveredError

OTHER_MODE = (
    'run this part inside `with samebits.enable_op_determinism(across="threads"):`, '
    "where the same bits are promised on one model of CPU"
)
"""The way out of a refusal."""
_CURE = f"Use real numbers, or {OTHER_MODE}"


def takes(op: str, *dtypes: torch.dtype) -> bool:
    """Returns True for types that our kernels read, False for integers, which torch's kernel adds exactly.

    Raises:
        NotCoveredError: complex numbers, or floating point of 8 bits.
    """
    for dtype in dtypes:
        if dtype not in MEMORY:
            if dtype.is_complex or dtype.is_floating_point:
                raise NotCoveredError(f"aten::{op}", f"of {str(dtype).removeprefix('torch.')}", _CURE)
            return False
    return True


def has_complex(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns True if an operand is complex; the loop stays bare, since mul passes here."""
    for value in args:
        if (isinstance(value, Tensor) and value.is_complex()) or isinstance(value, complex):
            return True
    return bool(kwargs) and any(isinstance(value, Tensor) and value.is_complex() for value in kwargs.values())


def _has_fractions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns True if an argument is of floating point or complex, or asks for a result that is."""
    return any(_is_fraction(value) for value in (*args, *kwargs.values()))


def _is_fraction(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_fraction, value))
    dtype = value.dtype if isinstance(value, Tensor) else value
    return isinstance(value, (float, complex)) or (
        isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
    )


IS_NOT_COVERED = {REAL: has_complex, INTEGERS: _has_fractions}
"""For torch's kernels that stay for some types: a function of the arguments, True for the other types."""
