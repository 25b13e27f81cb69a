"""The definition of sums in exact order, in NumPy: slow, and independent of the kernels."""

import numpy as np


def fma(x, y, z):
    """x y + z of float32 or float64 arrays, rounded once (float64: by exact fractions)."""
    if x.dtype == np.float32:
        product = x.astype(np.float64) * y  # exact
        total = product + z
        back = total - product
        error = (product - (total - back)) + (z - back)
        # Rounded to odd, so that rounding again to float32 is right (Boldo, Melquiond: Emulation of FMA, 2008).
        even = (total.view(np.int64) & 1) == 0
        nudged = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
        return np.where((error != 0) & even, nudged, total).astype(np.float32)
    from fractions import Fraction

    made = [
        float(Fraction(a) * Fraction(b) + Fraction(c))
        for a, b, c in zip(x.tolist(), y.tolist(), z.tolist(), strict=True)
    ]
    return np.array(made, dtype=np.float64)


def tree(lanes, combine=np.add):
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = combine(lanes[:half], lanes[half:])
    return lanes[0]


def plain(lanes, x):
    return lanes + x


def square(lanes, x):
    return fma(x, x, lanes)


def times(lanes, pairs):
    return fma(pairs[:, 0], pairs[:, 1], lanes)


def reduced(x, step=plain):
    """S of a vector (for `times`, of pairs of numbers), where a lane takes an element by `step`."""
    if len(x) > 256:
        return reduced(np.array([reduced(x[i : i + 256], step) for i in range(0, len(x), 256)]))
    lanes = np.zeros(16, x.dtype)
    for i in range(0, len(x), 16):
        some = x[i : i + 16]
        lanes[: len(some)] = step(lanes[: len(some)], some)
    return tree(lanes)
