"""tanh and erf in float32: at most 0.75 ulp.

Each has 16 intervals, told apart by the bits of |x| + 9/16 down to the second of its mantissa. In an interval
it is f(c) + t P(t), t = |x| - c, with a center c at which f(c) is next to a float32; in the one at zero it is
|x| + |x| P(|x|). From 9.1 on the result is that of 9.1, which is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samebits._native.formula import at_least, at_most, by_horners_rule, fma, formula, where
from samebits.arithmetic.functions.coefficients import ERF_NARROW, TANH_NARROW


def _by_pieces(x: Any, pieces: Sequence[Sequence[float]]) -> Any:
    """Returns an odd function that is 1 from 9.1 on."""
    size = at_most(x.magnitude(), 9.1)
    place = at_least(size + 9 / 16, 5 / 8)
    center, value, *others = (place.bits() >> 21).looked_up(pieces)
    offset = size - center
    start = where(place < 3 / 4, size, value)
    return fma(offset, by_horners_rule(offset, others), start).with_sign_of(x)


@formula
def tanh_narrow(x: Any) -> Any:
    """Returns the hyperbolic tangent."""
    return _by_pieces(x, TANH_NARROW)


@formula
def erf_narrow(x: Any) -> Any:
    """Returns the error function."""
    return _by_pieces(x, ERF_NARROW)
