"""Probabilities of the normal distribution's tails, in decimal arithmetic: the same digits with every libm.

Below 3 by the Taylor series Phi(x) = 1/2 + phi(x) (x + x**3 / 3 + x**5 / (3 5) + ...), above by the continued
fraction Q(x) = phi(x) / (x + 1 / (x + 2 / (x + 3 / (x + ...)))) (Abramowitz and Stegun, 26.2.11 and 26.2.14).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from decimal import Context, Decimal, localcontext

_DIGITS = 60
_SQRT_TAU = Decimal("2.506628274631000502415765284811045253006986740609938316629923576")
_SERIES_BELOW = 3
_SERIES_TERMS = 100  # 9**100 / (3 5 ... 201) is below 10**-90
_FRACTION_TERMS = 400


def exact() -> AbstractContextManager[Context]:
    """Returns the decimal context of the functions below: 60 digits, exponents large enough for every value."""
    return localcontext(Context(prec=_DIGITS, Emin=-(10**17), Emax=10**17))


def upper_tail(x: Decimal) -> Decimal:
    """Returns Q(x), the probability that a standard normal number is above x, to some 50 digits. Call under `exact()`."""
    if x.is_infinite():
        return Decimal(x < 0)
    if x < 0:
        return 1 - upper_tail(-x)
    density = (-x * x / 2).exp() / _SQRT_TAU
    if x >= _SERIES_BELOW:
        return density * mills_ratio(x)
    term = total = x
    for k in range(1, _SERIES_TERMS):
        term = term * x * x / (2 * k + 1)
        total += term
    return Decimal("0.5") - density * total


def mills_ratio(x: Decimal) -> Decimal:
    """Returns Q(x) / phi(x) for x >= 3."""
    denominator = x
    for k in range(_FRACTION_TERMS, 0, -1):
        denominator = x + k / denominator
    return 1 / denominator


def between(a: Decimal, b: Decimal) -> Decimal:
    """Returns the probability that a standard normal number is between a and b, without cancellation of tails."""
    if a >= 0:
        return upper_tail(a) - upper_tail(b)
    if b <= 0:
        return upper_tail(-b) - upper_tail(-a)
    return 1 - upper_tail(b) - upper_tail(-a)


def tails_ratio(a: Decimal, b: Decimal) -> Decimal:
    """Returns Q(b) / Q(a) for b >= a >= 3; no tail is too far out."""
    if b.is_infinite():
        return Decimal(0)
    return ((a - b) * (a + b) / 2).exp() * mills_ratio(b) / mills_ratio(a)
