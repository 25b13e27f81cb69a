"""fmod and remainder in float64: exact, before the one rounding that the remainder's sum may need.

With a quotient below 2^50 that is rounded to an integer q, x - q y is exact. Larger ones, which are rare, are reduced by
multiples 2^(28 k) y (2^(48 k) y for float64) first, from the largest on.
"""

from __future__ import annotations

from typing import Any

from samebits._native.formula import INFINITY, NAN, ROUNDING, fma, formula, where

_WIDE = (2.0**28, 10)
_DOUBLE = (2.0**48, 43)
"""The largest quotient of one step, and the number of steps: float32 have quotients below 2^278, float64 below 2^2099."""


def _less_multiples(x: Any, y: Any) -> Any:
    """Returns x modulo y for positive numbers; x where y is larger, and also infinite."""
    q = ((x / y) + ROUNDING) - ROUNDING
    rest = fma(-q, y, x)
    return where(y <= x, where(rest < 0.0, rest + y, rest), x)


def _fmod_of_sizes(x: Any, y: Any, steps: tuple[float, int]) -> Any:
    """Returns x modulo y for positive finite numbers."""
    largest, count = steps
    far = x >= y * largest
    common = _less_multiples(where(far, 0.0 * y, x), y)

    def distant() -> Any:
        rest = x
        multiples = [y]
        for _ in range(count):
            multiples.append(multiples[-1] * largest)
        for multiple in reversed(multiples):
            rest = _less_multiples(rest, multiple)
        return rest

    return far.rarely(common, distant)


def _fmod(x: Any, y: Any, steps: tuple[float, int]) -> Any:
    """Returns x - n y with n the quotient without its fraction; with the sign of x; NaN for y = 0 or infinite x."""
    size, divisor = x.magnitude(), y.magnitude()
    valid = (size < INFINITY) & (divisor > 0.0)
    usual = valid & (divisor < INFINITY)
    rest = _fmod_of_sizes(where(usual, size, 0.0), where(usual, divisor, 1.0), steps)
    return where(valid, where(usual, rest.with_sign_of(x), x), NAN)


def _remainder(x: Any, y: Any, rest: Any) -> Any:
    """Returns fmod, plus y if the signs of the two differ."""
    differ = ((rest > 0.0) & (y < 0.0)) | ((rest < 0.0) & (y > 0.0))
    return where(differ, rest + y, rest)


@formula
def fmod_wide(x: Any, y: Any) -> Any:
    """Returns C's fmod, of float32 numbers."""
    return _fmod(x, y, _WIDE)


@formula
def remainder_wide(x: Any, y: Any) -> Any:
    """Returns Python's remainder, of float32 numbers."""
    return _remainder(x, y, fmod_wide(x, y))


@formula
def fmod_double(x: Any, y: Any) -> Any:
    """Returns C's fmod."""
    return _fmod(x, y, _DOUBLE)


@formula
def remainder_double(x: Any, y: Any) -> Any:
    """Returns Python's remainder."""
    return _remainder(x, y, fmod_double(x, y))
