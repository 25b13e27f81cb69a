"""Writes `arithmetic/functions/coefficients.json`: the polynomials of our functions, and constants in two or three parts.

Each polynomial interpolates a smooth function at the Chebyshev points of its interval, in 60 digits, and is rounded to
float64 once; the largest error, measured with the rounded coefficients, is printed and written beside it.
Needs mpmath, which torch brings with it (sympy). Run it from the root: `python tools/function_coefficients.py`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import mpmath as mp

mp.mp.dps = 60
TARGET = Path("src/samebits/arithmetic/functions/coefficients.json")
LN2 = mp.log(2)
NEAR = mp.mpf(10) ** -25


def without_hole(function: Callable[[mp.mpf], mp.mpf], value: mp.mpf) -> Callable[[mp.mpf], mp.mpf]:
    """Returns the function, with its limit at zero, where its formula divides zero by zero."""
    return lambda x: value if abs(x) < NEAR else function(x)


def log_tail(f: mp.mpf) -> mp.mpf:
    """Returns (log(1 + f) - f) / f^2."""
    return (mp.log1p(f) - f) / f**2


def scaled_erfc(t: mp.mpf) -> mp.mpf:
    """Returns exp(x^2) erfc(x) (x + K) at x with t = (x - K) / (x + K)."""
    x = ERFC_K * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x) * (x + ERFC_K)


def erf_ratio(t: mp.mpf) -> mp.mpf:
    """Returns erf(x) / x at x^2 = 8 (t + 1)."""
    x = mp.sqrt(8 * (t + 1))
    return mp.erf(x) / x if abs(x) > NEAR else 2 / mp.sqrt(mp.pi)


def erf_small(u: mp.mpf) -> mp.mpf:
    """Returns erf(x) / x - 1 at x = sqrt(u)."""
    x = mp.sqrt(u)
    return (mp.erf(x) / x if abs(x) > NEAR else 2 / mp.sqrt(mp.pi)) - 1


def erfinv_ratio(w: mp.mpf) -> mp.mpf:
    """Returns erfinv(x) / x at w = -log(1 - x^2)."""
    if abs(w) < NEAR:
        return mp.sqrt(mp.pi) / 2
    x = mp.sqrt(-mp.expm1(-w))
    return inverse_erf(w) / x


def inverse_erf(w: mp.mpf) -> mp.mpf:
    """Returns y with 1 - erf(y)^2 = exp(-w)."""
    start = mp.erfinv(mp.sqrt(-mp.expm1(-w)))
    return mp.findroot(lambda y: mp.log(mp.erfc(y)) + mp.log1p(mp.erf(y)) + w, start)


def of_square(function: Callable[[mp.mpf], mp.mpf], value: int | mp.mpf) -> Callable[[mp.mpf], mp.mpf]:
    """Returns u -> function(x) / x at x = sqrt(u)."""
    return lambda u: mp.mpf(value) if abs(u) < NEAR else function(mp.sqrt(u)) / mp.sqrt(u)


def normal_beyond(x: mp.mpf) -> mp.mpf:
    """Returns the part of the normal distribution beyond x."""
    return mp.erfc(x / mp.sqrt(2)) / 2


def normal_tail(x: mp.mpf) -> mp.mpf:
    """Returns exp(x^2 / 2) times the part of the normal distribution beyond x."""
    return mp.exp(x * x / 2) * normal_beyond(x)


def normal_tails(step: float, degree: int, *, with_rest: bool) -> list[list[float]]:
    """Returns polynomials in u for normal_tail(i step + u), i from 0 to 15, the constant in one or two parts."""
    rows = []
    for center in (mp.mpf(step) * i for i in range(16)):
        value = normal_tail(center)
        slope = without_hole(
            lambda u, c=center, v=value: (normal_tail(c + u) - v) / u, mp.diff(normal_tail, center)
        )
        half = mp.mpf(step) / 2
        first = in_float32(value)
        rest = [in_float32(value - first)] if with_rest else []
        rows.append([first, *rest, *map(in_float32, fit(slope, (-half, half), degree - 1))])
    return rows


def pieces(function: Callable[[mp.mpf], mp.mpf], shift: float) -> list[list[float]]:
    """Returns for i from 0 to 15 a center c, function(c), and the polynomial of the difference quotient in x - c.

    Row i is of the x for which i are the last 4 bits down to the second of the mantissa of s = x + shift, for s
    from 5/8 to 10. The row of 5/8 begins at zero: its center is 0, and its polynomial function(x) / x - 1.
    """
    edges = [mp.mpf(4 + i % 4) * mp.mpf(2) ** (i // 4 - 3) - shift for i in range(1, 18)]
    rows = [first_piece(function, edges[1]), *(piece(function, *each) for each in pairwise(edges[1:]))]
    return rows[7:] + rows[:7]


def first_piece(function: Callable[[mp.mpf], mp.mpf], stop: mp.mpf) -> list[float]:
    """Returns the row of the numbers from zero on."""
    ratio = without_hole(lambda x: function(x) / x - 1, mp.diff(function, 0) - 1)
    return [0.0, 0.0, *map(in_float32, fit(ratio, (mp.mpf(0), stop), 5))]


def piece(
    function: Callable[[mp.mpf], mp.mpf], start: mp.mpf, stop: mp.mpf, degree: int = 5, reach: int = 8
) -> list[float]:
    """Returns the row of an interval; at its center the function and its derivative are next to float32 numbers.

    The center is within 1 / `reach` of the width from the middle; without reach, it is the start.
    """
    width = stop - start

    def error(c: float) -> mp.mpf:
        """Returns the error of rounding both to float32."""
        return far_from_float32(function(c)) + width / 2 * far_from_float32(mp.diff(function, c))

    middle, center = (start + stop) / 2, start
    if reach:
        step = width / (2000 * reach)
        center = mp.mpf(min((in_float32(middle + step * i) for i in range(-2000, 2000)), key=error))
    value = function(center)
    slope = without_hole(lambda u: (function(center + u) - value) / u, mp.diff(function, center))
    return list(map(in_float32, [center, value, *fit(slope, (start - center, stop - center), degree)]))


def quadratic_root(value: mp.mpf) -> mp.mpf:
    """Returns x with x (61 / 128 x + 15 / 16) = value."""
    a, b = mp.mpf(61) / 128, mp.mpf(15) / 16
    return (mp.sqrt(b * b + 4 * a * value) - b) / (2 * a)


def far_from_float32(value: mp.mpf) -> mp.mpf:
    """Returns the distance of a value to the next float32."""
    return abs(in_float32(value) - value)


ERFC_K = mp.mpf("3.5")
HALF_LN2 = LN2 / 2 * mp.mpf("1.001")
POLYNOMIALS = {
    # name: (the function that it follows, in words; the function; the interval; the degree)
    "EXP_TAIL": (
        "(exp(r) - 1 - r) / r^2",
        without_hole(lambda r: (mp.expm1(r) - r) / r**2, mp.mpf(1) / 2),
        (-HALF_LN2, HALF_LN2),
        7,
    ),
    "EXP_TAIL_LONG": (
        "(exp(r) - 1 - r) / r^2",
        without_hole(lambda r: (mp.expm1(r) - r) / r**2, mp.mpf(1) / 2),
        (-HALF_LN2, HALF_LN2),
        11,
    ),
    "EXP2_TAIL": (
        "(2^r - 1) / r",
        without_hole(lambda r: mp.expm1(r * LN2) / r, LN2),
        (mp.mpf(-1) / 2, mp.mpf(1) / 2),
        9,
    ),
    "EXP_TAIL_NARROW": (
        "(exp(r) - 1 - r) / r^2, float32",
        without_hole(lambda r: (mp.expm1(r) - r) / r**2, mp.mpf(1) / 2),
        (-HALF_LN2, HALF_LN2),
        5,
    ),
    "EXP2_TAIL_NARROW": (
        "(2^r - 1) / r, float32",
        without_hole(lambda r: mp.expm1(r * LN2) / r, LN2),
        (mp.mpf(-1) / 2, mp.mpf(1) / 2),
        6,
    ),
    "ATANH_NARROW": (
        "(2 atanh(s) - 2 s) / s^3 at u = s^2, s up to 1 / 3, float32",
        without_hole(lambda u: (2 * mp.atanh(mp.sqrt(u)) / mp.sqrt(u) - 2) / u, mp.mpf(2) / 3),
        (mp.mpf(0), mp.mpf(1) / 9),
        4,
    ),
    "LOG_TAIL_SHORT": (
        "(log(1 + f) - f) / f^2, float32",
        without_hole(log_tail, mp.mpf(-1) / 2),
        (mp.sqrt(mp.mpf(1) / 2) - 1, mp.sqrt(2) - 1),
        6,
    ),
    "LOG_TAIL_NARROW": (
        "(log(1 + f) - f) / f^2, f from -1 / 3 to 1 / 3, float32",
        without_hole(log_tail, mp.mpf(-1) / 2),
        (mp.mpf(-1) / 3, mp.mpf(1) / 3),
        9,
    ),
    "LOG_TAIL": (
        "(log(1 + f) - f) / f^2",
        without_hole(log_tail, mp.mpf(-1) / 2),
        (mp.sqrt(mp.mpf(1) / 2) - 1, mp.sqrt(2) - 1),
        16,
    ),
    "LOG_ATANH": (
        "(2 atanh(s) - 2 s) / s^3 at u = s^2",
        without_hole(lambda u: (2 * mp.atanh(mp.sqrt(u)) / mp.sqrt(u) - 2) / u, mp.mpf(2) / 3),
        (mp.mpf(0), (3 - 2 * mp.sqrt(2)) ** 2 * mp.mpf("1.001")),
        7,
    ),
    "LOG_ATANH_LONG": (
        "(2 atanh(s) - 2 s - 2/3 s^3) / s^5 at u = s^2",
        without_hole(
            lambda u: ((2 * mp.atanh(mp.sqrt(u)) / mp.sqrt(u) - 2) / u - mp.mpf(2) / 3) / u, mp.mpf(2) / 5
        ),
        (mp.mpf(0), (3 - 2 * mp.sqrt(2)) ** 2 * mp.mpf("1.001")),
        7,
    ),
    "SIN_LONG": (
        "(sin(r) / r - 1) / u at u = r^2, r up to pi / 4",
        without_hole(lambda u: (mp.sin(mp.sqrt(u)) / mp.sqrt(u) - 1) / u, mp.mpf(-1) / 6),
        (mp.mpf(0), (mp.pi / 4 * mp.mpf("1.0001")) ** 2),
        6,
    ),
    "COS_LONG": (
        "(cos(r) - 1 + u / 2) / u^2 at u = r^2, r up to pi / 4",
        without_hole(lambda u: (mp.cos(mp.sqrt(u)) - 1 + u / 2) / u**2, mp.mpf(1) / 24),
        (mp.mpf(0), (mp.pi / 4 * mp.mpf("1.0001")) ** 2),
        6,
    ),
    "ERF_LONG": ("erf(x) / x - 1 at u = x^2, x up to 1", erf_small, (mp.mpf(0), mp.mpf(1)), 14),
    "ERFC_LONG": (
        "exp(x^2) erfc(x) (x + 3.5) at t = (x - 3.5) / (x + 3.5), for x up to 28",
        scaled_erfc,
        (mp.mpf(-1), (mp.mpf(28) - ERFC_K) / (mp.mpf(28) + ERFC_K)),
        26,
    ),
    "ASIN_LONG": (
        "(asin(x) / x - 1) / u at u = x^2, x up to 1 / 2",
        without_hole(lambda u: (mp.asin(mp.sqrt(u)) / mp.sqrt(u) - 1) / u, mp.mpf(1) / 6),
        (mp.mpf(0), mp.mpf(1) / 4),
        14,
    ),
    "ATAN_LONG": (
        "(atan(x) / x - 1) / u at u = x^2, x up to tan(pi / 8)",
        without_hole(lambda u: (mp.atan(mp.sqrt(u)) / mp.sqrt(u) - 1) / u, mp.mpf(-1) / 3),
        (mp.mpf(0), (mp.sqrt(2) - 1) ** 2 * mp.mpf("1.0001")),
        11,
    ),
    "SINH_TAIL": (
        "(sinh(r) / r - 1) / u at u = r^2",
        without_hole(lambda u: (mp.sinh(mp.sqrt(u)) / mp.sqrt(u) - 1) / u, mp.mpf(1) / 6),
        (mp.mpf(0), HALF_LN2**2),
        4,
    ),
    "COSH_TAIL": (
        "(cosh(r) - 1) / u at u = r^2",
        without_hole(lambda u: (mp.cosh(mp.sqrt(u)) - 1) / u, mp.mpf(1) / 2),
        (mp.mpf(0), HALF_LN2**2),
        5,
    ),
    "ERF": (
        "erf(x) / x at x^2 = 8 (t + 1)",
        erf_ratio,
        (mp.mpf(-1), mp.mpf(1)),
        25,
    ),
    "ERFC": (
        "exp(x^2) erfc(x) (x + 3.5) at t = (x - 3.5) / (x + 3.5), for x up to 10.6",
        scaled_erfc,
        (mp.mpf(-1), (mp.mpf("10.6") - ERFC_K) / (mp.mpf("10.6") + ERFC_K)),
        18,
    ),
    "ERFINV_CENTER": (
        "erfinv(x) / x at w = 3.125 (t + 1), w = -log(1 - x^2)",
        lambda t: erfinv_ratio(mp.mpf("3.125") * (t + 1)),
        (mp.mpf(-1), mp.mpf(1)),
        19,
    ),
    "ERFINV_TAIL": (
        "erfinv(x) / x at s = 3.35 + 0.9 t, s^2 = -log(1 - x^2)",
        lambda t: erfinv_ratio((mp.mpf("3.35") + mp.mpf("0.9") * t) ** 2),
        (mp.mpf(-1), mp.mpf(1)),
        19,
    ),
    "ERFINV_FAR": (
        "erfinv(x) / x at s = 5.15 + 1.05 t, s^2 = -log(1 - x^2)",
        lambda t: erfinv_ratio((mp.mpf("5.15") + mp.mpf("1.05") * t) ** 2),
        (mp.mpf(-1), mp.mpf(1)),
        15,
    ),
    "SIN_HALF_TURN": (
        "(sin(r) / r - 1) / u at u = r^2, r up to pi / 2",
        without_hole(lambda u: (mp.sin(mp.sqrt(u)) / mp.sqrt(u) - 1) / u, mp.mpf(-1) / 6),
        (mp.mpf(0), (mp.pi / 2 * mp.mpf("1.0001")) ** 2),
        6,
    ),
    "SIN_TAIL": (
        "(sin(r) / r - 1) / u at u = r^2, r up to pi / 4",
        without_hole(lambda u: (mp.sin(mp.sqrt(u)) / mp.sqrt(u) - 1) / u, mp.mpf(-1) / 6),
        (mp.mpf(0), (mp.pi / 4 * mp.mpf("1.0001")) ** 2),
        5,
    ),
    "COS_TAIL": (
        "(cos(r) - 1 + u / 2) / u^2 at u = r^2, r up to pi / 4",
        without_hole(lambda u: (mp.cos(mp.sqrt(u)) - 1 + u / 2) / u**2, mp.mpf(1) / 24),
        (mp.mpf(0), (mp.pi / 4 * mp.mpf("1.0001")) ** 2),
        4,
    ),
    "SIN_NARROW": (
        "(sin(r) / r - 1) / u at u = r^2, r up to pi / 4, float32",
        without_hole(lambda u: (mp.sin(mp.sqrt(u)) / mp.sqrt(u) - 1) / u, mp.mpf(-1) / 6),
        (mp.mpf(0), (mp.pi / 4 * mp.mpf("1.01")) ** 2),
        3,
    ),
    "COS_NARROW": (
        "(cos(r) - 1 + u / 2) / u^2 at u = r^2, r up to pi / 4, float32",
        without_hole(lambda u: (mp.cos(mp.sqrt(u)) - 1 + u / 2) / u**2, mp.mpf(1) / 24),
        (mp.mpf(0), (mp.pi / 4 * mp.mpf("1.01")) ** 2),
        2,
    ),
    "ASIN": (
        "(asin(x) / x - 1) / u at u = x^2, x up to 1 / 2",
        without_hole(lambda u: (mp.asin(mp.sqrt(u)) / mp.sqrt(u) - 1) / u, mp.mpf(1) / 6),
        (mp.mpf(0), mp.mpf(1) / 4),
        11,
    ),
    "ATAN": (
        "(atan(x) / x - 1) / u at u = x^2, x up to 1",
        without_hole(lambda u: (mp.atan(mp.sqrt(u)) / mp.sqrt(u) - 1) / u, mp.mpf(-1) / 3),
        (mp.mpf(0), mp.mpf(1)),
        17,
    ),
}


def fit(function: Callable[[mp.mpf], mp.mpf], interval: tuple[mp.mpf, mp.mpf], degree: int) -> list[float]:
    """Returns the coefficients, from that of the constant on, of the interpolation at Chebyshev points."""
    coefficients = mp.chebyfit(function, [*interval], degree + 1)
    return [float(c) for c in reversed(coefficients)]


def largest_error(
    function: Callable[[mp.mpf], mp.mpf], interval: tuple[mp.mpf, mp.mpf], coefficients: list[float]
) -> mp.mpf:
    """Returns the largest relative error of the polynomial at 257 points of the interval."""
    a, b = interval
    worst = mp.mpf(0)
    for i in range(257):
        x = (a + b) / 2 + (b - a) / 2 * mp.cos(mp.pi * i / 256)
        exact = function(x)
        worst = max(worst, abs(mp.polyval([mp.mpf(c) for c in reversed(coefficients)], x) / exact - 1))
    return worst


def in_float32(value: mp.mpf | float) -> float:
    """Returns the number rounded to float32."""
    return struct.unpack("f", struct.pack("f", value))[0]


def parts(value: mp.mpf, bits: tuple[int, ...]) -> list[float]:
    """Returns the value as a sum of float64, each but the last with no more than that many bits."""
    found, rest = [], value
    for size in bits:
        scale = mp.mpf(2) ** (size - 1 - mp.floor(mp.log(abs(rest), 2)))
        found.append(float(mp.nint(rest * scale) / scale))
        rest -= mp.mpf(found[-1])
    return found


def half_turns() -> list[list[float]]:
    """Returns for each exponent e from 50 to 127 three parts of 2^(e - 23) / pi modulo 2, of 26, 26 and 53 bits.

    The first two are multiples of 2^-25 and 2^-51.
    """
    rows = []
    mp.mp.dps = 120
    for e in range(50, 128):
        rest = mp.fmod(mp.mpf(2) ** (e - 23) / mp.pi, 2)
        row = []
        for place in (25, 51):
            part = mp.nint(rest * mp.mpf(2) ** place) / mp.mpf(2) ** place
            row.append(float(part))
            rest -= part
        rows.append([*row, float(rest)])
    mp.mp.dps = 60
    return rows


def entry(words: str, values: Sequence[float | Sequence[float]]) -> dict[str, Any]:
    """Returns what the file has of a tuple: its description, and its numbers in hexadecimal, so that they are exact."""
    return {"follows": words, "values": [hexadecimal(value) for value in values]}


def hexadecimal(value: float | Sequence[float]) -> str | list[Any]:
    """Returns the text of a number, or of each of a row."""
    return value.hex() if isinstance(value, float) else [hexadecimal(one) for one in value]


def main() -> None:
    """Writes the file."""
    entries = {}
    for name, (words, function, interval, degree) in POLYNOMIALS.items():
        coefficients = fit(function, interval, degree)
        if name.endswith(("NARROW", "SHORT")):
            coefficients = [in_float32(c) for c in coefficients]
        error = f"2^{float(mp.log(largest_error(function, interval, coefficients), 2)):.1f}"
        print(f"{name:16} degree {degree:2}  {error}")
        entries[name] = entry(f"{words}; relative error {error}", coefficients)
    entries["NORMAL_TAIL_NARROW"] = entry(
        "for i from 0 to 15 exp(x^2 / 2) cdf(-x) at x = 5/16 i (float32, and the rest), and the polynomial in "
        "u = x - 5/16 i of its difference quotient",
        normal_tails(5 / 16, 5, with_rest=True),
    )
    entries["NORMAL_TAIL_SHORT"] = entry(
        "for i from 0 to 15 the polynomial in u = x - 29/32 i of exp(x^2 / 2) cdf(-x)",
        normal_tails(29 / 32, 5, with_rest=False),
    )
    edges = [mp.mpf(0), *(quadratic_root(i + mp.mpf(1) / 2) for i in range(16))]
    entries["NORMAL_BEYOND_NARROW"] = entry(
        "for i from 0 to 15 a center c (0 for the first), cdf(-c), and the polynomial in x - c of the difference quotient; "
        "i is x (61 / 128 x + 15 / 16), rounded",
        [piece(normal_beyond, *interval, 7, 32 if i else 0) for i, interval in enumerate(pairwise(edges))],
    )
    for name, function in (("TANH", mp.tanh), ("ERF", mp.erf)):
        entries[f"{name}_NARROW"] = entry(
            f"for each of 16 intervals a center c, {name.lower()}(c), and the polynomial in x - c of the difference "
            "quotient; about zero c = 0, and the quotient less 1",
            pieces(function, 9 / 16),
        )
    entries["LN2"] = entry("log(2) in two parts; the first has 42 bits", parts(LN2, (42, 53)))
    entries["PI"] = entry("pi in three parts", parts(mp.pi, (53, 53, 53)))
    entries["HALF_PI"] = entry("pi / 2 in three parts", parts(mp.pi / 2, (53, 53, 53)))
    entries["HALF_PI_NARROW"] = entry("pi / 2 in three parts of float32", parts(mp.pi / 2, (24, 24, 24)))
    entries["LOG2_E_PAIR"] = entry("log2(e) in two parts", parts(1 / LN2, (53, 53)))
    entries["LOG10_E_PAIR"] = entry("log10(e) in two parts", parts(mp.log10(mp.e), (53, 53)))
    entries["LOG10_2_PAIR"] = entry(
        "log10(2) in two parts; the first has 42 bits", parts(mp.log10(2), (42, 53))
    )
    entries["LN2_LONG"] = entry("log(2) in two parts of 53 bits", parts(LN2, (53, 53)))
    mp.mp.dps = 420
    digits = mp.floor(mp.mpf(2) ** (24 * 56) * 2 / mp.pi)
    chunks = [float(int(digits) >> (24 * (55 - k)) & 0xFFFFFF) for k in range(56)]
    mp.mp.dps = 60
    entries["TWO_OVER_PI"] = entry("the binary digits of 2 / pi, 24 at a time", chunks)
    entries["HALF_TURNS"] = entry(
        "2^(e - 23) / pi modulo 2 for e from 50 to 127, in parts of multiples of 2^-25, of 2^-51, and the rest",
        half_turns(),
    )
    TARGET.write_text(json.dumps(entries, indent=1) + "\n")


if __name__ == "__main__":
    main()
