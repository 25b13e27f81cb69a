"""Formulas: each operation is the same for LLVM and for exact numbers, in float64 and in float32."""

import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exact_numbers import ExactNumber
from samebits._native import kernel
from samebits._native.formula import (
    at_least,
    at_most,
    by_horners_rule,
    fma,
    formula,
    one_nan,
    polynomial,
    where,
)

LONG = tuple(1 / (1 + n) for n in range(15))

OPERATIONS = {
    "sum": lambda x, y: x + y,
    "number added": lambda x, y: 0.1 + x,
    "difference": lambda x, y: x - y,
    "product": lambda x, y: x * y,
    "quotient": lambda x, y: x / y,
    "fused": fma,
    "negative": lambda x, y: -x,
    "magnitude": lambda x, y: x.magnitude(),
    "sign": lambda x, y: x.with_sign_of(y),
    "root": lambda x, y: x.magnitude().square_root(),
    "choice": lambda x, y: where((x < y) | (x >= 2.0 * y), x, y),
    "no choice": lambda x, y: where(~((x <= y) & (y > 0.5)), 1.0, y),
    "bounds": lambda x, y: at_least(at_most(x, 3.0), -0.25),
    "rare": lambda x, y: (x < y).rarely(x, lambda: y + 1.0),
    "bits": lambda x, y: (((x.bits() + 3) >> 2) << 2).number(),
    "Horner": lambda x, y: by_horners_rule(x, (1.0, -0.5, 0.3)),
    "two chains": lambda x, y: polynomial(y, LONG),
}
THREE = {"fused"}
FORMULAS = tuple(
    formula((lambda x, y, one=one: one(x, y, x)) if name in THREE else one)
    for name, one in OPERATIONS.items()
)


@kernel("void(float64, float64, float64[::1])")
def in_float64(x, y, out):
    place = 0
    for one in FORMULAS:
        out[place] = one(x, y)
        place += 1


@kernel("void(float32, float32, float32[::1])")
def in_float32(x, y, out):
    place = 0
    for one in FORMULAS:
        out[place] = one(x, y)
        place += 1


def bits(x):
    """With one NaN for every NaN."""
    return np.where(np.isnan(x), np.nan, x).astype(x.dtype).tobytes()


def check(compute, kind, x, y):
    out = np.empty(len(FORMULAS), kind)
    compute(x, y, out)
    exact = [one(ExactNumber(x, kind), ExactNumber(y, kind)).value for one in FORMULAS]
    for name, found, expected in zip(OPERATIONS, out, np.array(exact).astype(kind), strict=True):
        assert bits(found) == bits(expected), name


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.floats(), st.floats())
@example(-0.0, 0.0)
@example(math.inf, math.nan)
def test_operations_of_float64_are_exact_and_rounded_once(x, y):
    """Sums to polynomials: LLVM's code gives what fractions give, for any pair of numbers."""
    check(in_float64, "float64", x, y)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.floats(width=32), st.floats(width=32))
@example(2.0**-126, 0.5)
def test_operations_of_float32_are_exact_and_rounded_once(x, y):
    """The same in float32: no operation is computed in a wider type."""
    check(in_float32, "float32", x, y)


def test_a_contracted_product_would_be_seen():
    """Negative control: x y + x rounded twice, and fused, are told apart, by exact numbers as by the kernel."""
    x, y = 0.1, -1 + 2.0**-30
    out = np.empty(len(FORMULAS))
    in_float64(x, y, out)
    exact, other = ExactNumber(x), ExactNumber(y)
    fused, twice = fma(exact, other, exact).value, (exact * other + exact).value
    assert out[[*OPERATIONS].index("fused")] == fused != twice


def test_every_nan_becomes_the_quiet_one():
    """`one_nan` leaves numbers, and gives NaN of any sign and payload the bits 0x7ff8000000000000."""

    @kernel("float64(float64)")
    def quiet(x):
        return QUIET(x)

    for word in (0xFFF8000000000001, 0x7FF8000000000000, 0x7FFFFFFFFFFFFFFF):
        assert (
            np.float64(quiet(float(np.uint64(word).view(np.float64)))).view(np.uint64) == 0x7FF8000000000000
        )
    assert [quiet(x) for x in (1.5, -math.inf)] == [1.5, -math.inf]


QUIET = formula(one_nan)
