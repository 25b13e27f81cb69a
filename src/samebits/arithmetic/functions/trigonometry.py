"""sin, cos, tan and sinc.

sin and cos of float32 are computed in float32, with at most 0.9 ulp: x = n pi / 2 + r with |r| <= pi / 4, r a
pair of numbers: pi / 2 is taken in three parts. By n the result is plus or minus the sine or the cosine of r,
each a polynomial. From 2^17 on it is the function in float64.

The functions in float64 (`..._wide`) have an error of 2^-46 of the result: to be rounded once to float32.
x = n pi + r with |r| <= pi / 2 (for tan: n pi / 2), r to 2^-53 of itself: pi is taken in three parts. From
2^50 on, n and r come from the digits of 1 / pi at the place of x's exponent, a table. The arguments are
float32 numbers, as float64.
"""

from __future__ import annotations

import math
from typing import Any

from samebits._native.formula import (
    INFINITY,
    NAN,
    ROUNDING,
    ROUNDING_NARROW,
    by_horners_rule,
    fma,
    formula,
    polynomial,
    where,
)
from samebits.arithmetic.functions.coefficients import (
    COS_LONG,
    COS_NARROW,
    COS_TAIL,
    HALF_PI,
    HALF_PI_NARROW,
    HALF_TURNS,
    PI,
    SIN_HALF_TURN,
    SIN_LONG,
    SIN_NARROW,
    SIN_TAIL,
    TWO_OVER_PI,
)
from samebits.arithmetic.functions.pairs import (
    Pair,
    exact_product,
    exact_sum,
    ordered_sum,
    product_of_pairs,
    quotient_of_pairs,
    rounded,
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

    x is a whole multiple m of 2^(e - 23), m below 2^24, so that its products with the first two parts are
    exact.
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
    """Returns the cosine: the sine of a quarter more, less n + 1/2 half turns; NaN for infinities."""
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


# sin, cos and tan of float64: x = n pi / 2 + r, with r a pair; at most 0.6 ulp.
#
# Up to 2^30, pi / 2 in three parts is taken away. Beyond, x times the digits of 2 / pi from the place on
# where the products are no multiples of 4: each product of half of x with 24 bits is exact, and is taken
# modulo 4.


_FAR_DOUBLE = 2.0**30
_TWO_OVER_PI = 0.6366197723675814
_TERMS = 9
_SPLITTER = 134217729.0
_ROWS = tuple(
    tuple((*TWO_OVER_PI, *(0.0,) * _TERMS)[row : row + _TERMS]) for row in range(len(TWO_OVER_PI) - _TERMS)
)
"""For row j, the digits from place 24 j on."""


def _near(x: Any) -> tuple[Any, Pair]:
    """Returns n + ROUNDING and r for |x| < 2^30."""
    whole = fma(x, _TWO_OVER_PI, ROUNDING)
    n = whole - ROUNDING
    high, high_rest = exact_product(n, HALF_PI[0])
    middle, middle_rest = exact_product(n, HALF_PI[1])
    first, lost = exact_sum(x - high, -high_rest)
    second, lost_too = exact_sum(first, -middle)
    rest = (lost + lost_too) - fma(n, HALF_PI[2], middle_rest)
    return whole, ordered_sum(second, rest)


def _modulo_4(number: Any) -> Any:
    """Returns the number less a multiple of 4; from 2^53 on it is one."""
    quarter = 0.25 * where(number.magnitude() < 2.0**52, number, 0.0)
    return 4.0 * (quarter - ((quarter + ROUNDING) - ROUNDING))


def _far(x: Any) -> tuple[Any, Pair]:
    """Returns n + ROUNDING and r for 2^30 <= |x|."""
    size = where(x.magnitude() < INFINITY, x.magnitude(), _FAR_DOUBLE)
    exponent = ((size.bits() >> 52) + (0x4338000000000000 - 1023)).number() - ROUNDING
    # Row j for exponents from 24 j + 53 + 1 on; 2^(-24 j) by two steps, since it may be subnormal.
    row = (exponent - 54.0) * (1.0 / 24.0)
    row = where(row < 0.0, 0.0, ((row - 0.499) + ROUNDING) - ROUNDING)
    digits = row.looked_up(_ROWS, 0)
    down = (((ROUNDING - 24.0 * row).bits() + 1023) << 52).number()
    scaled = (size * down).with_sign_of(x)
    split = scaled * _SPLITTER
    high = split - (split - scaled)
    total = lost = x.constant(0.0)
    for place, digit in enumerate(digits):
        weight = 2.0 ** (-24 * (place + 1))
        for part in (high, scaled - high):
            total, error = exact_sum(total, _modulo_4(part * digit * weight))
            lost = lost + error
    total, lost = ordered_sum(total, lost)
    whole = total + ROUNDING
    fraction = ordered_sum(total - (whole - ROUNDING), lost)
    return whole, product_of_pairs(fraction, (HALF_PI[0], HALF_PI[1]))


def _sine(r: Pair) -> Pair:
    u = r[0] * r[0]
    tail = fma(r[0] * u, polynomial(u, SIN_LONG), fma(-0.5 * u, r[1], r[1]))
    return ordered_sum(r[0], tail)


def _cosine(r: Pair) -> Pair:
    u, lost = exact_product(r[0], r[0])
    first, error = ordered_sum(u * 0.0 + 1.0, -0.5 * u)
    tail = fma(u * u, polynomial(u, COS_LONG), fma(-r[0], r[1], -0.5 * lost))
    return ordered_sum(first, error + tail)


def _quarter(whole: Any, quarters: int) -> tuple[Any, Any]:
    """Returns the truths that n + quarters is odd, and that it is 2 or 3 modulo 4."""
    bits = whole.bits() + quarters
    return ((bits & 1) << 62).number() > 0.0, ((bits & 2) << 61).number() > 0.0


def _wave(whole: Any, r: Pair, quarters: int) -> Any:
    odd, negative = _quarter(whole, quarters)
    result = where(odd, rounded(_cosine(r)), rounded(_sine(r)))
    return where(negative, -result, result)


def _tangent(whole: Any, r: Pair) -> Any:
    odd, _ = _quarter(whole, 0)
    sine, cosine = _sine(r), _cosine(r)
    top = where(odd, -cosine[0], sine[0]), where(odd, -cosine[1], sine[1])
    bottom = where(odd, sine[0], cosine[0]), where(odd, sine[1], cosine[1])
    return rounded(quotient_of_pairs(top, bottom))


def _evaluated(x: Any, compute: Any) -> Any:
    distant = ~(x.magnitude() < _FAR_DOUBLE)
    near = where(distant, x.constant(0.0), x)
    common = compute(*_near(near))
    result = distant.rarely(common, lambda: compute(*_far(x)))
    return where(x.magnitude() < INFINITY, result, NAN)


@formula
def sin_double(x: Any) -> Any:
    """Returns the sine; tiny numbers are their own."""
    return where(x.magnitude() < 2.0**-27, x, _evaluated(x, lambda n, r: _wave(n, r, 0)))


@formula
def cos_double(x: Any) -> Any:
    """Returns the cosine."""
    return _evaluated(x, lambda n, r: _wave(n, r, 1))


@formula
def tan_double(x: Any) -> Any:
    """Returns the tangent; tiny numbers are their own."""
    return where(x.magnitude() < 2.0**-27, x, _evaluated(x, _tangent))


@formula
def sinc_double(x: Any) -> Any:
    """Returns sin(pi x) / (pi x), and 1 at zero; x less an even number is exact."""
    half = 0.5 * where(x.magnitude() < 2.0**51, x, 0.0)
    rest = 2.0 * (half - ((half + ROUNDING) - ROUNDING))
    sine = sin_double(rest * math.pi)
    result = sine / (x * math.pi)
    result = where(x.magnitude() < 2.0**51, result, where(x.magnitude() < INFINITY, x.constant(0.0), NAN))
    return where(x.equals(0.0), x.constant(1.0), result)


_FAR_NARROW = 2.0**17


def _less_quarters_narrow(x: Any) -> tuple[Any, Pair]:
    """Returns n + ROUNDING_NARROW and the pair r for x = n pi / 2 + r."""
    whole = fma(x, _TWO_OVER_PI, ROUNDING_NARROW)
    n = whole - ROUNDING_NARROW
    high, low = exact_product(n, HALF_PI_NARROW[1])
    # x - n pi / 2 is exact for the first part of pi: a multiple of 2^-24 below 1.
    first, lost = ordered_sum(fma(-n, HALF_PI_NARROW[0], x), -high)
    return whole, (first, lost - fma(n, HALF_PI_NARROW[2], low))


def _wave_narrow(x: Any, quarters: int) -> Any:
    """Returns the sine of x plus a number of quarters of a turn."""
    whole, (r, rest) = _less_quarters_narrow(x)
    bits = whole.bits() + quarters
    u, lost = exact_product(r, r)
    sine = fma(r * u, by_horners_rule(u, SIN_NARROW), rest)
    lost = fma(lost, -0.5, -(r * rest))
    cosine = fma(u, -0.5, fma(u * u, by_horners_rule(u, COS_NARROW), lost))
    odd = ((bits & 1) << 30).number() > 0.0
    result = where(odd, cosine, sine) + where(odd, 1.0, r)
    return (result.bits() + ((bits & 2) << 30)).number()


@formula
def sin_narrow(x: Any) -> Any:
    """Returns the sine; NaN for infinities."""
    # A zero keeps its sign.
    near = where(x.equals(0.0), x, _wave_narrow(x, 0))
    return (~(x.magnitude() < _FAR_NARROW)).rarely(near, lambda: sin_wide(x.as_float64()).as_float32())


@formula
def cos_narrow(x: Any) -> Any:
    """Returns the cosine; NaN for infinities."""
    return (~(x.magnitude() < _FAR_NARROW)).rarely(
        _wave_narrow(x, 1), lambda: cos_wide(x.as_float64()).as_float32()
    )
