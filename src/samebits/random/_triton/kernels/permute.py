"""Keyed permutations: the Triton counterpart of the kernels of `samebits.random._draws.feistel`, which states the method."""

import triton
import triton.language as tl

_MIX_1, _MIX_2 = tl.constexpr(0xFF51AFD7ED558CCD), tl.constexpr(0xC4CEB9FE1A85EC53)


@triton.jit(do_not_specialize=["start", "n", "rows", "columns"])
def permute(
    round_keys, indices, out, number: tl.uint64, start: tl.uint64,
    n: tl.uint64, rows: tl.uint64, columns: tl.uint64,
    ROUNDS: tl.constexpr, GIVEN: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Row k of `out`, int64 (keys, number): images under key k of start, start + 1, ..., or of `indices` where GIVEN."""
    number, n, rows, columns = (
        number.to(tl.uint64),
        n.to(tl.uint64),
        rows.to(tl.uint64),
        columns.to(tl.uint64),
    )
    programs_per_key = (number + (SIZE - 1)) // SIZE
    program = tl.program_id(0).to(tl.uint64)
    key = program // programs_per_key
    place = (program - key * programs_per_key) * SIZE + tl.arange(0, SIZE).to(tl.uint64)
    inside = place < number
    round_keys += key * ROUNDS
    if GIVEN:
        x = tl.load(indices + place, mask=inside, other=0).to(tl.uint64)
    else:
        x = tl.where(inside, start.to(tl.uint64) + place, 0)
    x = _feistel(round_keys, x, rows, columns, ROUNDS)
    outside = inside & (x >= n)
    while tl.max(outside.to(tl.int32), axis=0) > 0:
        x = tl.where(outside, _feistel(round_keys, x, rows, columns, ROUNDS), x)
        outside = inside & (x >= n)
    tl.store(out + key * number + place, x.to(tl.int64), mask=inside)


@triton.jit
def _feistel(round_keys, x, rows, columns, ROUNDS: tl.constexpr):
    row = x % rows
    column = x // rows
    for pair in tl.static_range(ROUNDS // 2):
        row += _hash_below(column, tl.load(round_keys + 2 * pair), rows)
        row = tl.where(row >= rows, row - rows, row)
        column += _hash_below(row, tl.load(round_keys + 2 * pair + 1), columns)
        column = tl.where(column >= columns, column - columns, column)
    return column * rows + row


@triton.jit(do_not_specialize=["n"])
def shuffle(keys, out, n: tl.uint64, SIZE: tl.constexpr):
    """Fisher and Yates's shuffles of range(n), n <= SIZE, each in the registers of one program; `out` is int64 (keys, n)."""
    place = tl.arange(0, SIZE)
    order = tl.zeros((SIZE,), tl.int64)
    key = tl.load(keys + tl.program_id(0))
    size = n.to(tl.int32)
    for i in range(size):
        index = tl.full((1,), i, tl.int32).to(tl.uint64)
        j = tl.sum(_hash_below(index, key, index + 1)).to(tl.int32)
        moved = tl.sum(tl.where(place == j, order, 0))
        order = tl.where(place == i, moved, order)
        order = tl.where(place == j, i, order)
    tl.store(out + tl.program_id(0).to(tl.int64) * size + place, order, mask=place < size)


@triton.jit
def _hash_below(x, round_key, size):
    """murmur3's 64-bit finaliser of x under a key, upper 40 bits scaled to range(size), size <= 2**24."""
    x = (x ^ round_key) * _MIX_1
    x = (x ^ (x >> 33)) * _MIX_2
    return (((x ^ (x >> 33)) >> 24) * size) >> 40
