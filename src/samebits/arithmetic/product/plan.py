"""A product's plan: its numbers as a kernel reads them, from shapes, strides and types."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import torch

from samebits._strides import contiguous_strides
from samebits.arithmetic.product.few_rows import MOST, few
from samebits.arithmetic.product.mxcsr import mxcsr_of
from samebits.arithmetic.product.packing import STRIPS
from samebits.arithmetic.product.records import LastSteps, Layout, ProductCut, ThreadSettings
from samebits.arithmetic.product.scratch import LINE
from samebits.arithmetic.product.tiles import COLUMNS, DIRECT, ROWS, register_tile, tiled
from samebits.arithmetic.product.vectors import BFLOAT16, NUMBERS, Number

# The way in which a product is cut and packed: from its sizes, its layout and the number of threads.
#
# None of it has an influence on bits.


ALONE = 1 << 19
"""Multiply-adds of a product for one thread: some 6 us, and to wake another takes 2."""
WIDE = 512
"""Columns of a tile, at most: a packed chunk of them, half a megabyte, stays in the cache of one core."""
TALL = 504
"""Rows of a tile whose sums are kept in memory, at most."""
LOW = 96
"""Rows of a product for which the second factor is hardly worth packing."""
FAR = 4096
"""Bytes between the rows of a factor that is worth packing, at least."""
LARGE = 1 << 22
"""Bytes of a factor that no cache of one core holds."""
_PACKING_A = (0.06, 0.25, 0.5)
_PACKING_B = {DIRECT: 0.06, ROWS: 0.2, COLUMNS: 0.6}
"""Cycles to read or pack an element of a factor: estimates, which decide between grids alone."""
_TILE = 5000
"""Cycles that a tile costs beside that, estimated."""


def ceil(whole: int, part: int) -> int:
    """The quotient, rounded up."""
    return -(-whole // part)


def cut(number: Number, layout: Layout, threads: int, *, is_final: bool) -> ProductCut:
    """Returns the tiles of a product."""
    form = register_tile(number)
    m, n, k, batch = layout.m, layout.n, layout.k, layout.batch
    work = m * n * k
    chunks_of_k = ceil(k, form.chunk)
    if m <= MOST and (number is not BFLOAT16 or layout.ak == layout.bk == number.size):
        return _cut_few(number, layout, threads)
    made = ProductCut(m, n, 1, 1, 1, *_packing(number, layout), chunks_of_k, 1, 0)
    if is_final and chunks_of_k > 1:
        made.grid_m = ceil(m, TALL)
    if batch * work <= ALONE:
        made.items = batch
        made.tile_n = n
        return made
    wanted = 1 if threads == 1 else min(2 * threads, max(threads, batch * work // (1 << 20)))
    made.items = max(1, min(ceil(batch, 2 * wanted), (1 << 20) // work))
    pieces = ceil(wanted, ceil(batch, made.items))
    made.grid_n = ceil(n, _widest(m, made.pack_b))
    rows, columns = ceil(m, form.rows), ceil(n, form.columns)
    if pieces > made.grid_m * made.grid_n:
        made.grid_m, made.grid_n = _grid(number, layout, made, pieces, threads)
    if made.grid_m * made.grid_n < pieces and chunks_of_k > 1:
        parts = ceil(4 * pieces, made.grid_m * made.grid_n)
        _by_chunks(made, chunks_of_k, parts, batch * m * n * number.size)
    made.tile_m = ceil(rows, made.grid_m) * form.rows
    made.tile_n = ceil(columns, made.grid_n) * form.columns
    made.grid_m, made.grid_n = ceil(m, made.tile_m), ceil(n, made.tile_n)
    return made


def _grid(number: Number, layout: Layout, made: ProductCut, pieces: int, threads: int) -> tuple[int, int]:
    """Returns the numbers of tiles down and across that take the least time, for about that number of pieces.

    Each tile packs what it reads: many tiles side by side pack the first factor again and again, many below
    each other the second.
    """
    form = register_tile(number)
    rows, columns = ceil(layout.m, form.rows), ceil(layout.n, form.columns)
    reached = min(pieces, rows * columns)
    packed_a, packed_b = _PACKING_A[made.pack_a], _PACKING_B[made.pack_b]
    groups = ceil(layout.batch, made.items)
    best, least = (made.grid_m, made.grid_n), 0.0
    for grid_m in range(made.grid_m, min(rows, 2 * pieces) + 1):
        tall = ceil(rows, grid_m)
        down = ceil(rows, tall)
        # With many threads there are many pieces, and few of their grids have about that many tiles.
        for grid_n in range(max(made.grid_n, reached // down), min(columns, 2 * pieces // down) + 1):
            broad = ceil(columns, grid_n)
            tiles = down * ceil(columns, broad)
            if not reached <= tiles <= 2 * pieces:
                continue
            height, width = tall * form.rows, broad * form.columns
            each = height * width / (2 * number.lanes) + height * packed_a + width * packed_b
            time = ceil(groups * tiles, threads) * (each * layout.k + _TILE)
            if not least or time < least:
                best, least = (grid_m, grid_n), time
    return best


def _cut_few(number: Number, layout: Layout, threads: int) -> ProductCut:
    m, n, k, batch = layout.m, layout.n, layout.k, layout.batch
    wide = 2 * number.lanes
    chunks_of_k = ceil(k, register_tile(number).chunk)
    second = _second(number, layout)
    made = ProductCut(
        m, n, 1, 1, 1, 0, COLUMNS if second == COLUMNS else DIRECT, chunks_of_k, 1, 0, is_few=True
    )
    size = n * k
    made.items = max(1, min(batch, (1 << 17) // size))
    made.grid_n = ceil(n, 1024 if m <= 2 else 512)
    pieces = 1 if threads == 1 or batch * size < 1 << 18 else 2 * threads
    made.grid_n = max(made.grid_n, min(ceil(n, 4 * wide), ceil(pieces, batch)))
    made.tile_n = ceil(ceil(n, made.grid_n), wide) * wide
    made.grid_n = ceil(n, made.tile_n)
    if made.grid_n * batch < pieces and chunks_of_k > 1:
        _by_chunks(made, chunks_of_k, ceil(2 * pieces, made.grid_n * batch), batch * m * n * number.size)
    return made


def _by_chunks(made: ProductCut, chunks: int, parts: int, plane: int) -> None:
    """Cuts the inner dimension too, in whole chunks, whose sums are stored each by itself."""
    made.part_k = ceil(chunks, min(chunks, parts))
    made.parts = ceil(chunks, made.part_k)
    made.plane = plane


def _widest(m: int, pack_b: int) -> int:
    """Returns the most columns of a tile: few if a panel is packed for few rows, used while it is near."""
    if m > LOW:
        return WIDE
    return {DIRECT: 4 * WIDE, ROWS: WIDE, COLUMNS: WIDE // 8}[pack_b]


def _second(number: Number, layout: Layout) -> int:
    """Returns how the second factor is read."""
    if number is BFLOAT16:
        return COLUMNS if layout.bk == number.size else ROWS
    if layout.bn != number.size:
        return COLUMNS
    # Rows far apart share places in the caches, and pages of them are many: once in a panel they are not.
    is_far = layout.bk >= FAR
    return ROWS if is_far and (layout.m >= 256 or layout.n * layout.k * number.size >= LARGE) else DIRECT


def _packing(number: Number, layout: Layout) -> tuple[int, int]:
    """Returns what is packed of the first factor, and of the second."""
    first = 0
    if number is BFLOAT16:
        first = 0 if layout.ak == number.size else 2
    elif layout.n >= 128:
        if layout.ak == number.size:
            first = 1 if layout.am >= 4096 and layout.am % 1024 == 0 else 0
        elif layout.am == number.size:
            first = 2
    return first, _second(number, layout)


NOTHING: tuple[()] = ()
"""No tensor."""


class ProductCase(NamedTuple):
    """All that the plan of a product depends on: types, shapes, strides, and no number of a tensor."""

    dtype: torch.dtype
    other: torch.dtype
    """Of the second factor."""
    made: torch.dtype
    """Of the result."""
    left: tuple[int, ...]
    right: tuple[int, ...]
    """The factors' shapes."""
    a: tuple[int, ...]
    b: tuple[int, ...]
    """The factors' strides."""
    added: Any
    """Shape, strides and type of `self`, or NOTHING."""
    is_plain: bool
    """Alpha and beta are 1."""
    threads: int
    out: tuple[int, ...]
    """Strides (item, row, column) of a result that is there already, or NOTHING."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The result's, if the factors fit."""
        return self.left[:-1] + self.right[-1:] * (len(self.right) > 1)


Steps = tuple[int, ...]
"""Elements from item to item of a batch, from row to row, and from column to column."""


class Matrices(NamedTuple):
    """The sizes of a batch of products of matrices, and the steps through factors and `self`."""

    batch: int
    m: int
    n: int
    k: int
    a: Steps
    b: Steps
    added: Steps

    def transposed(self) -> Matrices:
        """Returns the products of the transposed factors, whose results are the transposed ones."""
        a, b, added = ((item, column, row) for item, row, column in (self.b, self.a, self.added))
        return Matrices(self.batch, self.n, self.m, self.k, a, b, added)


class ProductPlan:
    """One product's numbers, at an address at which the kernel reads them."""

    is_copied = False
    """A factor has neither contiguous rows nor columns, or is odd in pairs: it has to be copied first."""

    def __init__(
        self, case: ProductCase, number: Number, layout: Layout, cut: ProductCut, last: LastSteps
    ) -> None:
        state = ThreadSettings(mxcsr_of(number), _bytes_of_thread(number, layout, cut, last))
        records = state, layout, cut, last
        self._numbers = array("q", [number for one in records for number in vars(one).values()])
        self.address = self._numbers.buffer_info()[0]
        self.chunks = cut.grid_m * cut.grid_n * ceil(layout.batch, cut.items) * cut.parts
        self.run = few(number, case.made, layout.m, cut.pack_b) if cut.is_few else tiled(number, case.made)
        self.alone = self.run.alone()
        self.memory_parts = min(case.threads, self.chunks)
        self.memory = state.memory * self.memory_parts
        """Bytes that the kernel needs, of its threads together."""
        self.shape, self.strides = case.shape, contiguous_strides(case.shape)
        """Of the result."""
        self.is_swapped = False
        """The factors change places: the transposed product is computed."""
        self.planes = ceil(layout.k, register_tile(number).chunk) if cut.plane else 1
        """Sums of chunks that are stored each by itself, for `finish`."""
        self.is_simple = self.chunks == 1 and self.planes == 1 and not last.is_final
        """One chunk of work makes the result, without alpha and beta."""
        self.sums = self.planes, layout.batch, layout.m, layout.n
        self.sum_dtype = number.sums
        self.mxcsr, self.adds_self = state.mxcsr, int(last.adds_self)
        self.steps = tuple(vars(last).values())[1:-1]


def _bytes_of_thread(number: Number, layout: Layout, cut: ProductCut, last: LastSteps) -> int:
    """Returns the bytes in which a thread packs, and keeps sums."""
    form = register_tile(number)
    width = ceil(cut.tile_n, form.columns) * form.columns
    panels = width if cut.pack_b else form.columns
    strip = STRIPS * form.rows * form.chunk * 2 if cut.pack_a else 0
    sums = width * (form.rows if layout.k <= form.chunk else cut.tile_m) if last.is_final else 0
    if cut.is_few:
        panels, strip, sums = 0, 0, 2 * layout.m * width
    return ceil((panels * form.chunk + strip + sums) * number.size, LINE) * LINE


class CopiedFactors(ProductPlan):
    """No plan: a factor has to be copied first."""

    is_copied = True

    def __init__(self) -> None: ...


def planned(case: ProductCase) -> ProductPlan | None:
    """Returns the plan of a product; None if the types or the shapes do not fit."""
    number = NUMBERS.get(case.dtype)
    matrices = _as_matrices(case)
    if number is None or case.other != case.dtype or matrices is None:
        return None
    is_swapped = matrices.n <= MOST and matrices.n < matrices.m and case.out == NOTHING
    if is_swapped:  # the transposed product has few rows
        matrices = matrices.transposed()
    steps = (_steps_of_pairs if number is BFLOAT16 else _steps_of_elements)(matrices, number.size)
    if steps is None:
        return CopiedFactors()
    batch, m, n, k, a, b, added = matrices
    am, ak, bk, bn = steps
    unit, inner = (2, k // 2) if number is BFLOAT16 else (number.size, k)
    c = case.out or (m * n, n, 1)
    c_item, cm, self_item, sm = (step * number.size for step in (*c[:2], *added[:2]))
    layout = Layout(m, n, inner, batch, am, ak, bk, bn, cm, sm, a[0] * unit, b[0] * unit, c_item, self_item)
    in_tile = _ends_in_tile(case, number, matrices, is_swapped=is_swapped)
    cuts = cut(number, layout, case.threads, is_final=not in_tile)
    if cuts.plane:  # sums of chunks are stored for `finish`, and dense
        layout.cm, layout.c_item = n * number.size, m * n * number.size
    cuts.is_adding = in_tile and not cuts.plane and case.added != NOTHING
    of_result = (m * n, 1, m) if is_swapped else c
    last_steps = (step * case.made.itemsize for step in (*of_result, *added))
    last = LastSteps(not in_tile and not cuts.plane, *last_steps, adds_self=case.added != NOTHING)
    plan = ProductPlan(case, number, layout, cuts, last)
    plan.is_swapped = is_swapped
    return plan


def _ends_in_tile(case: ProductCase, number: Number, matrices: Matrices, *, is_swapped: bool) -> bool:
    """Returns True if sums are results: of their type, with rows of them, and of `self`, side by side."""
    is_dense = case.added == NOTHING or matrices.added[2] == 1 or matrices.n == 1
    is_turned = is_swapped and matrices.m > 1
    return case.is_plain and case.made == case.dtype and number is not BFLOAT16 and is_dense and not is_turned


def _steps_of_elements(one: Matrices, size: int) -> Any:
    """Returns both factors' bytes from row to row and column to column; None: the second must be copied."""
    bk, bn = one.b[1] * size, (one.b[2] if one.n > 1 else 1) * size
    return None if size not in (bn, bk) and one.k > 1 else (one.a[1] * size, one.a[2] * size, bk, bn)


def _steps_of_pairs(one: Matrices, size: int) -> Any:
    """The same for pairs of 16 bits along k; None if it is odd, or pairs cannot be read."""
    if one.k % 2:
        return None
    if one.a[2] == 1:
        first = 2 * one.a[1], size
    elif one.a[1] == 1:
        first = 2, size * one.a[2]
    else:
        return None
    if one.b[1] == 1:
        return (*first, size, 2 * one.b[2])
    return (*first, size * one.b[1], 2) if one.b[2] == 1 or one.n == 1 else None


def _as_matrices(case: ProductCase) -> Matrices | None:
    """Returns the product as one of matrices; None if shapes do not fit, or are empty."""
    left, right, a, b = case.left, case.right, case.a, case.b
    ranks, added = (len(left), len(right)), _broadcast(case)
    if added is None or left[-1:] != (right[-2:-1] or right) or 0 in (*left, *right):
        return None
    if ranks == (2, 2):
        return Matrices(1, left[0], right[1], left[1], (0, *a), (0, *b), added)
    if ranks == (3, 3) and left[0] == right[0]:
        return Matrices(left[0], left[1], right[2], left[2], a, b, added)
    if ranks == (2, 1):
        return Matrices(1, left[0], 1, left[1], (0, *a), (0, *b, 1), added)
    return None


def _broadcast(case: ProductCase) -> Steps | None:
    """Returns the steps that broadcast `self` to the result; None if it does not fit."""
    if case.added == NOTHING:
        return 0, 0, 0
    result, (shape, strides, dtype) = case.shape, case.added
    if (
        dtype != case.made
        or len(shape) > len(result)
        or any(size not in (1, there) for size, there in zip(shape[::-1], result[::-1], strict=False))
    ):
        return None
    steps = [0] * (len(result) - len(shape)) + [
        step if size > 1 else 0 for size, step in zip(shape, strides, strict=True)
    ]
    steps = [*steps, 0] if len(case.right) < 2 else steps
    return tuple([0] * (3 - len(steps)) + steps)
