"""Numbers with the operations of formulas, one at a time, in Python: each result is exact, then rounded once.

Fused multiply-adds and square roots are computed with fractions and integers, so that nothing of the compiler or the CPU
is trusted but + - * / of float64. float32 results are rounded from fractions, too.
"""

import math
import struct
from fractions import Fraction

import numpy as np


def rounded(value, kind):
    """The float64 or float32 next to a fraction, to nearest even."""
    if kind == "float64":
        return value.numerator / value.denominator  # Python rounds the quotient of integers correctly
    if value == 0:
        return 0.0
    exponent = max(math.frexp(abs(float(value)))[1] - 24, -149)
    while True:
        scaled = value / Fraction(2) ** exponent
        whole = round(scaled)  # to nearest, ties to even
        if abs(whole) > 1 << 24:
            exponent += 1
            continue
        break
    number = float(whole * Fraction(2) ** exponent)
    return number if abs(number) < 2.0**128 else math.copysign(math.inf, number)


class ExactNumber:
    """A float64 or float32 (`kind`)."""

    def __init__(self, value, kind="float64"):
        self.value, self.kind = float(value), kind

    def _of(self, other):
        if isinstance(other, ExactNumber):
            return other.value
        return float(other) if self.kind == "float64" else float(np.float32(other))

    def _new(self, value):
        return ExactNumber(value, self.kind)

    def _computed(self, operation, left, right):
        kind = np.float64 if self.kind == "float64" else np.float32
        with np.errstate(all="ignore"):
            return self._new(operation(kind(left), kind(right)))

    def __add__(self, other):
        return self._computed(lambda a, b: a + b, self.value, self._of(other))

    def __radd__(self, other):
        return self._computed(lambda a, b: a + b, self._of(other), self.value)

    def __sub__(self, other):
        return self._computed(lambda a, b: a - b, self.value, self._of(other))

    def __rsub__(self, other):
        return self._computed(lambda a, b: a - b, self._of(other), self.value)

    def __mul__(self, other):
        return self._computed(lambda a, b: a * b, self.value, self._of(other))

    def __rmul__(self, other):
        return self._computed(lambda a, b: a * b, self._of(other), self.value)

    def __truediv__(self, other):
        return self._computed(lambda a, b: a / b, self.value, self._of(other))

    def __rtruediv__(self, other):
        return self._computed(lambda a, b: a / b, self._of(other), self.value)

    def __neg__(self):
        return self._new(-self.value)

    def __lt__(self, other):
        return ExactTruth(self.value < self._of(other))

    def __le__(self, other):
        return ExactTruth(self.value <= self._of(other))

    def __gt__(self, other):
        return ExactTruth(self.value > self._of(other))

    def __ge__(self, other):
        return ExactTruth(self.value >= self._of(other))

    def equals(self, other):
        return ExactTruth(self.value == self._of(other))

    def fused(self, factor, term):
        a, b, c = self.value, self._of(factor), self._of(term)
        if not all(map(math.isfinite, (a, b, c))) or a == 0 or b == 0:
            with np.errstate(all="ignore"):
                return self._new(np.float64(a) * np.float64(b) + np.float64(c))
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        if exact == 0:
            return self._new(0.0)  # of opposite signs: to nearest gives a positive zero
        try:
            return self._new(rounded(exact, self.kind))
        except OverflowError:
            return self._new(math.inf if exact > 0 else -math.inf)

    def square_root(self):
        if not self.value > 0 or math.isinf(self.value):
            return self._new(self.value if self.value == 0 or self.value == math.inf else math.nan)
        return self._new(
            np.sqrt(np.float64(self.value) if self.kind == "float64" else np.float32(self.value))
        )

    def magnitude(self):
        return self._new(abs(self.value))

    def with_sign_of(self, other):
        return self._new(math.copysign(self.value, self._of(other)))

    def float32_reciprocal(self):
        with np.errstate(all="ignore"):
            return self._new(np.float32(1) / np.float32(self.value))

    def as_float32(self):
        with np.errstate(all="ignore"):
            return ExactNumber(np.float32(self.value), "float32")

    def as_float64(self):
        return ExactNumber(self.value)

    def bits(self):
        word, real = FORMS[self.kind]
        return ExactBits(struct.unpack(word, struct.pack(real, self.value))[0], self.kind)

    def chosen(self, condition, other):
        return self if condition.value else self._new(self._of(other))

    def constant(self, number):
        return self._new(self._of(number))

    def looked_up(self, table, first):
        place = int(self.value) - first
        return [self._new(number) for number in table[place if 0 <= place < len(table) else 0]]


class ExactTruth:
    def __init__(self, value):
        self.value = bool(value)

    def __and__(self, other):
        return ExactTruth(self.value and other.value)

    def __or__(self, other):
        return ExactTruth(self.value or other.value)

    def __invert__(self):
        return ExactTruth(not self.value)

    def rarely(self, common, rare):
        return rare() if self.value else common


FORMS = {"float64": ("Q", "d"), "float32": ("I", "f")}
"""How `struct` writes the bits and the number."""


class ExactBits:
    """The bits of a number of a kind."""

    def __init__(self, value, kind):
        self.value, self.kind = value % (1 << int(kind[-2:])), kind

    def _with(self, other, operation):
        right = other.value if isinstance(other, ExactBits) else other
        return ExactBits(operation(self.value, right), self.kind)

    def __add__(self, other):
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self._with(other, lambda a, b: a - b)

    def __and__(self, other):
        return self._with(other, lambda a, b: a & b)

    def __or__(self, other):
        return self._with(other, lambda a, b: a | b)

    def __lshift__(self, places):
        return ExactBits(self.value << places, self.kind)

    def __rshift__(self, places):
        return ExactBits(self.value >> places, self.kind)

    def converted(self):
        width = int(self.kind[-2:])
        signed = self.value - (self.value >> (width - 1) << width)
        return ExactNumber(np.float32(signed), self.kind)

    def looked_up(self, table):
        return [ExactNumber(np.float32(number), self.kind) for number in table[self.value % 16]]

    def number(self):
        word, real = FORMS[self.kind]
        return ExactNumber(struct.unpack(real, struct.pack(word, self.value))[0], self.kind)
