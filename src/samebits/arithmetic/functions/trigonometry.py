"""sin, cos, tan and sinc in float64 with an error of 2^-46 of the result: to be rounded once to float32.

x = n pi + r with |r| <= pi / 2 (for tan: n pi / 2), r to 2^-53 of itself: pi is taken in three parts. From 2^50 on, n and
r come from the digits of 1 / pi at the place of x's exponent, a table. The arguments are float32 numbers, as float64.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    ROUNDING,
    fma,
    formula,
    polynomial,
    where,
)
from samebits.arithmetic.functions.coefficients import (
    COS_TAIL,
    HALF_TURNS,
    PI,
    SIN_HALF_TURN,
    SIN_TAIL,
)

_FAR = 2.0**50
_ONE_OVER_PI = 0.3183098861837907


def _less_turns(x: Any, n: Any) -> Any:
    """Returns x - n pi."""
    return fma(-n, PI[2], fma(-n, PI[1], fma(-n, PI[0], x)))


def sine_of_reduced(rounded: Any, r: Any) -> Any:
    """Returns (-1)^n sin(r) for n + ROUNDING and |r| <= pi / 2."""
    u = r * r
    sine = fma(r * u, polynomial(u, SIN_HALF_TURN), r)
    return _flipped_if_odd(rounded, sine)


def _flipped_if_odd(rounded: Any, number: Any) -> Any:
    """Returns the number with its sign flipped if the integer in `rounded` is odd."""
    odd = (rounded.bits() & 1) << 63
    bits = number.bits()
    return (bits + odd).number()


def _far_half_turns(x: Any) -> tuple[Any, Any]:
    """Returns x / pi modulo 2 and a tail of it, for |x| >= 2^50.

    x is a whole multiple m of 2^(e - 23), m below 2^24, so that its products with the first two parts are exact.
    """
    size = where(x.magnitude() < INFINITY, x.magnitude(), _FAR)
    exponent_bits = (size.bits() >> 52) << 52
    power = exponent_bits.number()
    exponent = ((size.bits() >> 52) + (0x4338000000000000 - 1023)).number() - ROUNDING
    # m = x / 2^(e - 23): exact, a power of two
    m = (size / power) * 8388608.0
    m = m.with_sign_of(x)
    high, middle, low = exponent.looked_up(HALF_TURNS, 50)
    first = m * high
    first = first - 2.0 * ((first * 0.5 + ROUNDING) - ROUNDING)
    second = fma(m, middle, first)
    return second, m * low


@formula
def sin_wide(x: Any) -> Any:
    """Returns the sine; NaN for infinities."""
    far = ~(x.magnitude() < _FAR)
    near = where(far, x.constant(0.0), x)
    rounded = fma(near, _ONE_OVER_PI, ROUNDING)
    common = sine_of_reduced(rounded, _less_turns(near, rounded - ROUNDING))

    def distant() -> Any:
        turns, tail = _far_half_turns(x)
        whole = turns + ROUNDING
        return sine_of_reduced(whole, ((turns - (whole - ROUNDING)) + tail) * PI[0])

    result = far.rarely(common, distant)
    # A zero keeps its sign: n pi + 0 has lost it.
    return where(x.magnitude() < INFINITY, where(x.equals(0.0), x, result), NAN)


@formula
def cos_wide(x: Any) -> Any:
    """Returns the cosine: the sine of a quarter more, with n + 1/2 half turns taken away; NaN for infinities."""
    far = ~(x.magnitude() < _FAR)
    near = where(far, x.constant(0.0), x)
    rounded = fma(near, _ONE_OVER_PI, -0.5) + ROUNDING
    common = -sine_of_reduced(rounded, _less_turns(near, (rounded - ROUNDING) + 0.5))

    def distant() -> Any:
        turns, tail = _far_half_turns(x)
        whole = (turns - 0.5) + ROUNDING
        return -sine_of_reduced(whole, ((turns - ((whole - ROUNDING) + 0.5)) + tail) * PI[0])

    return where(x.magnitude() < INFINITY, far.rarely(common, distant), NAN)


def _tangent_of_reduced(rounded: Any, r: Any) -> Any:
    """Returns the tangent of n pi / 2 + r for n + ROUNDING and |r| <= pi / 4."""
    u = r * r
    sine = fma(r * u, polynomial(u, SIN_TAIL), r)
    cosine = fma(u * u, polynomial(u, COS_TAIL), fma(u, -0.5, 1.0))
    odd = ((rounded.bits() & 1) << 62).number() > 0.0
    return where(odd, -cosine, sine) / where(odd, sine, cosine)


@formula
def tan_wide(x: Any) -> Any:
    """Returns the tangent; NaN for infinities."""
    far = ~(x.magnitude() < _FAR)
    near = where(far, x.constant(0.0), x)
    rounded = fma(near, 2.0 * _ONE_OVER_PI, ROUNDING)
    common = _tangent_of_reduced(rounded, _less_turns(near, 0.5 * (rounded - ROUNDING)))

    def distant() -> Any:
        turns, tail = _far_half_turns(x)
        whole = 2.0 * turns + ROUNDING
        return _tangent_of_reduced(whole, ((turns - 0.5 * (whole - ROUNDING)) + tail) * PI[0])

    result = far.rarely(common, distant)
    return where(x.magnitude() < INFINITY, where(x.equals(0.0), x, result), NAN)


@formula
def sinc_wide(x: Any) -> Any:
    """Returns sin(pi x) / (pi x), and 1 at zero; x less an integer is exact."""
    bounded = where(x.magnitude() < _FAR, x, 0.0)
    rounded = bounded + ROUNDING
    r = bounded - (rounded - ROUNDING)
    sine = sine_of_reduced(rounded, r * PI[0])
    result = where(x.magnitude() < _FAR, sine, where(x.magnitude() < INFINITY, x.constant(0.0), NAN))
    return where(x.equals(0.0), x.constant(1.0), result / (x * PI[0]))
