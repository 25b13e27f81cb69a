"""The step with which a lane takes an element, for each kind of reduction; `fma` is the only contraction."""

from __future__ import annotations

from typing import Any, NamedTuple

from samebits._native import Part, inlined, vectors

_fma, _magnitude, _number_or_zero = vectors.fma, vectors.magnitude, vectors.number_or_zero
_not_zero = vectors.not_zero


@inlined
def _add(lane: Any, x: Any, y: Any, center: Any) -> Any:
    return lane + x


@inlined
def _add_number(lane: Any, x: Any, y: Any, center: Any) -> Any:
    return lane + _number_or_zero(x)


@inlined
def _add_magnitude(lane: Any, x: Any, y: Any, center: Any) -> Any:
    return lane + _magnitude(x)


@inlined
def _count(lane: Any, x: Any, y: Any, center: Any) -> Any:
    return lane + _not_zero(x)


@inlined
def _add_product(lane: Any, x: Any, y: Any, center: Any) -> Any:
    return _fma(x, y, lane)


@inlined
def _add_deviation(lane: Any, x: Any, y: Any, center: Any) -> Any:
    return _fma(x - center, x - center, lane)


@inlined
def _add_deviation_product(lane: Any, x: Any, y: Any, center: Any) -> Any:
    return _fma(x - center, y, lane)


@inlined
def _times(lane: Any, x: Any, y: Any, center: Any) -> Any:
    return lane * x


@inlined
def _sum_of(x: Any, y: Any) -> Any:
    return x + y


@inlined
def _product_of(x: Any, y: Any) -> Any:
    return x * y


class LaneStep(NamedTuple):
    """A kind of reduction."""

    take: Part
    combine: Part = _sum_of
    """Joins two lanes, or two results of blocks."""
    start: int = 0
    total: Part = vectors.added
    wide: bool = False
    """Lanes are float64 for every type of input."""
    binary: bool = False
    """It reduces two tensors of one layout."""
    centered: bool = False
    """It subtracts a number, one for each result."""
    again: str = "sum"
    """The kind of reduction that combines the blocks' results."""


STEPS = {
    "sum": LaneStep(_add),
    "wide sum": LaneStep(_add, wide=True, again="wide sum"),
    "nansum": LaneStep(_add_number),
    "norm1": LaneStep(_add_magnitude),
    "norm0": LaneStep(_count),
    "square": LaneStep(_add_product),
    "dot": LaneStep(_add_product, binary=True),
    "wide dot": LaneStep(_add_product, wide=True, binary=True, again="wide sum"),
    "deviation": LaneStep(_add_deviation, wide=True, centered=True, again="wide sum"),
    "narrow deviation": LaneStep(_add_deviation, centered=True),
    "deviation dot": LaneStep(
        _add_deviation_product, wide=True, binary=True, centered=True, again="wide sum"
    ),
    # Factors near 1 lose the same small term in every short chain, and a product in float32 overflows.
    "prod": LaneStep(_times, _product_of, start=1, total=vectors.multiplied, wide=True, again="prod"),
}
