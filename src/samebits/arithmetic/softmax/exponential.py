"""exp and log as softmax and its like use them, and the log of a sum of two exponentials, in kernels."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from samebits._native import inlined, vectors
from samebits._native.lazy_kernel import Deferred
from samebits.arithmetic.functions.exponential import exp_bounded_double, exp_narrow
from samebits.arithmetic.functions.logarithm import log_by_series

EXP = {"float32": exp_narrow, "float64": exp_bounded_double}
"""By the type that is computed in; of numbers and of vectors."""


@cache
def softmax_value(lanes_type: str, *, log: bool, is_exp: bool) -> Deferred:
    """Returns the part of kernels (x, center, divisor) for a vector of softmax, or of its logarithm.

    `is_exp`: x is exp(x - center) already. For the logarithm, `divisor` is that of the sum.
    """
    exp, one_nan = EXP[lanes_type], vectors.one_nan

    @inlined
    def value(x: Any, center: Any, divisor: Any) -> Any:
        if is_exp:
            made = x / divisor
        elif log:
            made = (x - center) - divisor
        else:
            made = exp(x - center) / divisor
        return one_nan(made)

    return value


@inlined
def log_of_sum(x: Any, y: Any) -> Any:
    """Returns log(exp(x) + exp(y)) of float64 numbers: the larger one plus log(1 + exp(the difference))."""
    high, low = (x, y) if x > y else (y, x)
    if np.isnan(x) or np.isnan(y):
        result = np.float64(np.nan)
    elif np.isinf(high):
        result = high
    else:
        result = high + log_by_series(1.0 + exp_bounded_double(low - high))
    return result
