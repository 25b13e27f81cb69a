"""exp and log as softmax and its like use them, and the log of a sum of two exponentials, in kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits._native import inlined
from samebits.determinism._arithmetic.functions.exponential import exp_bounded_double, exp_narrow
from samebits.determinism._arithmetic.functions.logarithm import log_by_series

EXP = {"float32": exp_narrow, "float64": exp_bounded_double}
"""By the type that is computed in; of numbers and of vectors."""


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
