"""The numbers of a product, as its kernels read them: sizes and steps in bytes, the cut, the last steps."""

from __future__ import annotations

from dataclasses import dataclass

A, B, C, ADDED, FIELDS, FACTORS, MEMORY, PARTS = range(1, 9)
"""A kernel's arguments behind the number of chunks: addresses of the factors, of the result, of `self`, of
these records, of alpha and beta, and of memory; and the number of the memory's parts, one for each thread.
"""


@dataclass
class ThreadSettings:
    """The settings with which each thread computes."""

    mxcsr: int
    memory: int
    """Bytes of each thread's memory."""


@dataclass
class Layout:
    """The sizes of a product, and the bytes from row to row and column to column of its tensors."""

    m: int
    n: int
    k: int
    batch: int
    am: int
    ak: int
    bk: int
    bn: int
    cm: int
    sm: int
    a_item: int
    """From item to item of a batch."""
    b_item: int
    c_item: int
    self_item: int


@dataclass
class ProductCut:
    """The tiles, and what is packed for them."""

    tile_m: int
    tile_n: int
    grid_m: int
    grid_n: int
    items: int
    pack_a: int
    pack_b: int
    part_k: int
    parts: int
    plane: int
    is_adding: bool = False
    """A tile adds `self` to its sums."""
    is_few: bool = False
    """The kernel of few rows computes it."""


@dataclass
class LastSteps:
    """Alpha, beta, `self` and the rounding to the result's type, which have one of three places.

    In the tile, where at most `self` is added (`is_adding`); in the row, as soon as its sums are complete
    (`is_final`); or in `finish`, for sums of chunks that are stored each by itself (`plane` is not 0).
    """

    is_final: bool
    out_item: int
    """Bytes from item to item, row to row and column to column of the result, and of `self`."""
    out_row: int
    out_column: int
    added_item: int
    added_row: int
    added_column: int
    adds_self: bool


RECORDS = ThreadSettings, Layout, ProductCut, LastSteps
"""In this order their numbers stand in memory."""
