"""The way in which a product is cut and packed: from its sizes, its layout and the number of threads.

None of it has an influence on bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from samebits.arithmetic.product.tiles import COLUMNS, DIRECT, ROWS, register_tile
from samebits.arithmetic.product.vectors import BFLOAT16, Number

ALONE = 1 << 19
"""Multiply-adds of a product for one thread: some 6 us, and to wake another takes 2."""
FEW = 4
"""Rows of a product that is as fast as the second factor is read."""
WIDE = 512
"""Columns of a tile, at most: a chunk of them, packed, is half a megabyte, and stays in the cache of one core."""
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
"""Cycles to read or pack an element of the first and of the second factor: estimates, which decide between grids alone."""
_TILE = 5000
"""Cycles that a tile costs beside that, estimated."""
TILED, FEW_ROWS = 0, 1
"""The kernels."""


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
    items: tuple[int, int, int, int]
    """From item to item of a batch: a, b, c, self."""


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
    kernel: int = TILED


def ceil(whole: int, part: int) -> int:
    """The quotient, rounded up."""
    return -(-whole // part)


def cut(number: Number, layout: Layout, threads: int, is_adding: bool, is_final: bool) -> ProductCut:
    """Returns the tiles of a product."""
    form = register_tile(number)
    m, n, k, batch = layout.m, layout.n, layout.k, layout.batch
    work = m * n * k
    chunks_of_k = ceil(k, form.chunk)
    if m <= FEW and (number is not BFLOAT16 or layout.ak == layout.bk == number.size):
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

    Each tile packs what it reads: many tiles side by side pack the first factor again and again, many below each other the second.
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
        m,
        n,
        1,
        1,
        1,
        0,
        COLUMNS if second == COLUMNS else DIRECT,
        chunks_of_k,
        1,
        0,
        is_adding,
        FEW_ROWS,
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
    """Returns the most columns of a tile: few where a panel is packed for few rows, and is used while it is close."""
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
