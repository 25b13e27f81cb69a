"""Softmax and log-softmax of x[0], ..., x[n - 1], with S the sum of `reductions`, m the largest x, or NaN:

- softmax: e[i] = exp(x[i] - m), y[i] = e[i] / S(e); the gradient is y[i] (g[i] - S(g y)), where the lanes of
  S take g y by fma.
- log-softmax: y[i] = (x[i] - m) - log(S(e)); the gradient is g[i] - exp(y[i]) S(g), by an fma.

All in float32, in float64 for float64; bfloat16 and float16 are read as float32, and each result is rounded
once. The functions are those of `exponential`. `rows` and `columns` have the kernels.
"""


def is_made(memory: str, result: str, **_: bool) -> bool:
    """Returns True for the types of operands and results that ops ask for."""
    return memory == result
