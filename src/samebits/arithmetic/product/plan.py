"""A product's plan: its numbers as a kernel reads them, from shapes, strides and types."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any

import torch

from samebits._strides import contiguous_strides
from samebits.arithmetic.product.few_rows import MOST, few
from samebits.arithmetic.product.mxcsr import mxcsr_of
from samebits.arithmetic.product.packing import STRIPS
from samebits.arithmetic.product.scratch import LINE
from samebits.arithmetic.product.tiles import COLUMNS, DIRECT, ROWS, ProductFields, register_tile, tiled
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
    is_adding: bool
    is_few: bool = False
    """The kernel of few rows computes it."""


def ceil(whole: int, part: int) -> int:
    """The quotient, rounded up."""
    return -(-whole // part)


def cut(number: Number, layout: Layout, threads: int, is_adding: bool, is_final: bool) -> ProductCut:
    """Returns the tiles of a product."""
    form = register_tile(number)
    m, n, k, batch = layout.m, layout.n, layout.k, layout.batch
    work = m * n * k
    chunks_of_k = ceil(k, form.chunk)
    if m <= MOST and (number is not BFLOAT16 or layout.ak == layout.bk == number.size):
        return _cut_few(number, layout, threads, is_adding)
    made = ProductCut(m, n, 1, 1, 1, *_packing(number, layout), chunks_of_k, 1, 0, is_adding)
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


def _cut_few(number: Number, layout: Layout, threads: int, is_adding: bool) -> ProductCut:
    m, n, k, batch = layout.m, layout.n, layout.k, layout.batch
    wide = 2 * number.lanes
    chunks_of_k = ceil(k, register_tile(number).chunk)
    second = _second(number, layout)
    made = ProductCut(
        m, n, 1, 1, 1, 0, COLUMNS if second == COLUMNS else DIRECT, chunks_of_k, 1, 0, is_adding, True
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
    made.is_adding = False


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
"""No tensor is added."""


@dataclass
class Final:
    """The last steps: strides of the result and of self in bytes (item, row, column), and is self added."""

    is_final: bool
    """The kernel takes these steps, alpha and beta too; else its sums are the result, or `finish` does."""
    steps: tuple[int, int, int, int, int, int]
    adds_self: bool


class ProductPlan:
    """One product's numbers, at an address at which the kernel reads them."""

    is_copied = False
    """A factor has neither contiguous rows nor columns, or is odd in pairs: it has to be copied first."""

    def __init__(
        self, number: Number, layout: Layout, cut: ProductCut, final: Final, dtype: torch.dtype, threads: int
    ) -> None:
        form = register_tile(number)
        panels = ceil(cut.tile_n, form.columns) * form.columns if cut.pack_b else form.columns
        strip = STRIPS * form.rows * form.chunk * 2 if cut.pack_a else 0
        sums = 0
        if final.is_final:
            height = form.rows if layout.k <= form.chunk else cut.tile_m
            sums = ceil(cut.tile_n, form.columns) * form.columns * height
        if cut.is_few:
            panels, strip, sums = 0, 0, 2 * layout.m * ceil(cut.tile_n, form.columns) * form.columns
        memory = ceil((panels * form.chunk + strip + sums) * number.size, LINE) * LINE
        self.mxcsr = mxcsr_of(number)
        names = ("out_item", "out_row", "out_column", "added_item", "added_row", "added_column")
        fields = ProductFields(
            mxcsr=self.mxcsr, memory=memory, **vars(layout), **vars(cut), is_final=final.is_final,
            **dict(zip(names, final.steps, strict=True)), adds_self=final.adds_self,
        )  # fmt: skip
        self._fields = array("q", fields)
        self.address = self._fields.buffer_info()[0]
        self.chunks = cut.grid_m * cut.grid_n * ceil(layout.batch, cut.items) * cut.parts
        self.run = few(number, dtype, layout.m, cut.pack_b) if cut.is_few else tiled(number, dtype)
        self.alone = self.run.alone()
        self.memory_parts = min(threads, self.chunks)
        self.memory = memory * self.memory_parts
        """Bytes that the kernel needs, of its threads together."""
        self.shape: tuple[int, ...] = ()
        """Of the result."""
        self.strides: tuple[int, ...] = ()
        self.is_swapped = False
        """The factors change places: the transposed product is computed."""
        self.planes = ceil(layout.k, form.chunk) if cut.plane else 1
        """Sums of chunks that are stored each by itself, for `finish`."""
        self.is_simple = self.chunks == 1 and self.planes == 1 and not final.is_final
        """One chunk of work makes the result, without alpha and beta."""
        self.sums: tuple[int, ...] = (self.planes, layout.batch, layout.m, layout.n)
        self.sum_dtype = number.sums
        self.steps = final.steps
        self.adds_self = int(final.adds_self)


class CopiedFactors(ProductPlan):
    """No plan: a factor has to be copied first."""

    is_copied = True

    def __init__(self) -> None: ...


def planned(
    dtype: Any,
    made: Any,
    left: Any,
    right: Any,
    a: Any,
    b: Any,
    added: Any,
    plain: bool,
    threads: int,
    out: Any = NOTHING,
) -> ProductPlan | None:
    """Returns the plan of a product, from shapes and strides; None if the shapes do not fit.

    `made`: the result's type; `out`: its strides (item, row, column) if it is there already.
    """
    number = NUMBERS.get(dtype)
    form = _as_matrices(left, right, a, b)
    if number is None or form is None:
        return None
    result, batch, m, n, k, a, b = form
    is_more = added != NOTHING
    s = _broadcast(result, len(right) < 2, added) if is_more else (0, 0, 0)
    if s is None or 0 in (batch, m, n, k) or (is_more and added[2] != made):
        return None
    is_swapped = n <= MOST and n < m and out == NOTHING
    if is_swapped:  # the transposed product has few rows
        m, n, a, b, s = n, m, *((one[0], one[2], one[1]) for one in (b, a, s))
    strides = (_of_pairs if number is BFLOAT16 else _of_elements)(number, m, n, k, a, b)
    if strides is None:
        return CopiedFactors()
    is_fused = plain and made == dtype and number is not BFLOAT16 and not (is_swapped and m > 1)
    is_fused = is_fused and (not is_more or s[2] == 1 or n == 1)
    size, bytes_of_one = number.size, made.itemsize
    unit = 2 if number is BFLOAT16 else size
    c = (m * n, n, 1) if out == NOTHING else out
    items = a[0] * unit, b[0] * unit, c[0] * size, s[0] * size
    inner = k // 2 if number is BFLOAT16 else k
    am, ak, bk, bn = strides[:4]
    layout = Layout(m, n, inner, batch, am, ak, bk, bn, c[1] * size, s[1] * size, *items)
    cuts = cut(number, layout, threads, is_fused and is_more, not is_fused)
    if cuts.plane:  # sums of chunks are stored for `finish`, and dense
        layout.cm, layout.c_item = n * size, m * n * size
    of_result = (m * n, 1, m) if is_swapped else c
    steps = *(step * bytes_of_one for step in of_result), *(step * bytes_of_one for step in s)
    final = Final(not is_fused and not cuts.plane, steps, is_more)
    plan = ProductPlan(number, layout, cuts, final, made, threads)
    plan.is_swapped, plan.shape, plan.strides = is_swapped, result, contiguous_strides(result)
    return plan


def _of_elements(number: Number, m: int, n: int, k: int, a: Any, b: Any) -> tuple[Any, ...] | None:
    """Returns both factors' bytes from row to row and column to column; None: the second must be copied."""
    size = number.size
    bk, bn = b[1] * size, (b[2] if n > 1 else 1) * size
    return None if size not in (bn, bk) and k > 1 else (a[1] * size, a[2] * size, bk, bn)


def _of_pairs(number: Number, m: int, n: int, k: int, a: Any, b: Any) -> tuple[Any, ...] | None:
    """The same for pairs of 16 bits along k; None if it is odd, or pairs cannot be read."""
    if k % 2:
        return None
    if a[2] == 1:
        first = 2 * a[1], 4
    elif a[1] == 1:
        first = 2, 4 * a[2]
    else:
        return None
    if b[1] == 1:
        return (*first, 4, 2 * b[2])
    return (*first, 4 * b[1], 2) if b[2] == 1 or n == 1 else None


def _as_matrices(left: Any, right: Any, a: Any, b: Any) -> Any:
    """Returns the result's shape, batch, m, n, k, both factors' strides (item, row, column); None: no fit."""
    ranks = len(left), len(right)
    if left[-1:] != (right[-2:-1] or right):
        return None
    if ranks == (2, 2):
        return (left[0], right[1]), 1, left[0], right[1], left[1], (0, *a), (0, *b)
    if ranks == (3, 3) and left[0] == right[0]:
        return (left[0], left[1], right[2]), left[0], left[1], right[2], left[2], a, b
    if ranks == (2, 1):
        return (left[0],), 1, left[0], 1, left[1], (0, *a), (0, *b, 1)
    return None


def _broadcast(result: Any, is_vector: bool, added: Any) -> Any:
    """Returns the strides (item, row, column) that broadcast a tensor to the result; None: no fit."""
    shape, strides = added[0], added[1]
    if len(shape) > len(result) or any(
        size not in (1, there) for size, there in zip(shape[::-1], result[::-1], strict=False)
    ):
        return None
    made = [0] * (len(result) - len(shape)) + [
        step if size > 1 else 0 for size, step in zip(shape, strides, strict=True)
    ]
    made = [*made, 0] if is_vector else made
    return tuple([0] * (3 - len(made)) + made)
