"""Pairs: unevaluated sums of two numbers; the first is the sum rounded to float64."""

from __future__ import annotations

from typing import Any

from samebits._native.formula import fma, where

Pair = tuple[Any, Any]


def exact_sum(a: Any, b: Any) -> Pair:
    """Returns a + b without error (Knuth's TwoSum)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def ordered_sum(a: Any, b: Any) -> Pair:
    """Returns a + b without error for |a| >= |b| (Dekker's FastTwoSum)."""
    total = a + b
    return total, b - (total - a)


def exact_product(a: Any, b: Any) -> Pair:
    """Returns a b without error."""
    product = a * b
    return product, fma(a, b, -product)


def product_of_pairs(a: Pair, b: Pair) -> Pair:
    """Returns the product to 2^-104."""
    product, error = exact_product(a[0], b[0])
    return product, fma(a[0], b[1], fma(a[1], b[0], error))


def quotient_of_pairs(a: Pair, b: Pair) -> Pair:
    """Returns the quotient to 2^-102."""
    first = a[0] / b[0]
    rest = fma(-first, b[0], a[0]) + fma(-first, b[1], a[1])
    return first, rest / b[0]


def rounded(a: Pair) -> Any:
    """Returns the number next to a pair."""
    return a[0] + a[1]


def root_of_pair(a: Pair) -> Pair:
    """Returns the square root of a pair; zero for zero."""
    root = a[0].square_root()
    rest = fma(-root, root, a[0]) + a[1]
    return root, where(root > 0.0, rest / (2.0 * root), 0.0)
