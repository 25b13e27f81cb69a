"""Transforms by passes, of 16 columns at a time: columns of a matrix, or rows of a contiguous one."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from samebits._native import inlined, vectors
from samebits._native.float_bits import SIZE
from samebits._native.kernel_threads import OnTeam, float32_at, float64_at, int64_at, on_team, variants
from samebits.arithmetic.fourier.butterflies import butterfly, load_columns, store_columns
from samebits.arithmetic.fourier.definition import RADICES
from samebits.arithmetic.fourier.roots import roots
from samebits.arithmetic.product.scratch import LINE, borrow, give_back, part_of_thread
from samebits.arithmetic.reductions.tensors import bits_of

LANES, _one_nan = vectors.LANES, vectors.one_nan
_GRAIN = 1 << 13
"""Complex numbers of a chunk, about."""
ELEMENTS = {torch.complex64: "float32", torch.complex128: "float64"}


def factors(n: int) -> list[int]:
    """Returns the radices of the passes of a length; the last is another prime factor, if there is one."""
    found = []
    for radix in RADICES:
        while n % radix == 0 and n > 1:
            found.append(radix)
            n //= radix
    return found if n == 1 else [*found, n]


class PassTables(NamedTuple):
    """The radices of the passes of one length, and their roots."""

    radices: Tensor
    """int64."""
    roots: Tensor
    """Complex: those of each pass in order."""


@lru_cache(maxsize=64)
def tables(n: int, dtype: torch.dtype) -> PassTables:
    """Returns the tables of a length."""
    radices, length, found = factors(n), n, []
    for radix in radices:
        m = length // radix
        powers = torch.arange(m)[:, None] * torch.arange(1, radix) * (n // length)
        found.append(roots(n)[powers.flatten() % n] if m > 1 else roots(n)[:0])
        length = m
    made = torch.cat(found) if found else roots(n)[:0]
    return PassTables(torch.tensor(radices, dtype=torch.int64), made.to(dtype))


@variants(element=("float32", "float64"))
def _kernel(element: str) -> OnTeam:
    """args: 1-4 of the numbers: address, strides (bytes) of matrices, along the transform, of columns; 5-8 of
    the results, alike; 9 length; 10 columns; 11 groups of 16 of a matrix; 12 all groups; 13 groups of a
    chunk; 14-16 passes: their number, addresses of radices and roots; 17-18 of the roots of the results:
    address (0: none), stride along the transform (of columns they are dense); 19 the factor's bits; 20-21 are
    1 where real and imaginary parts are exchanged, before, after; 22-24 memory, its parts, bytes of each.
    """
    size = SIZE[element]
    vector, pair = LANES * size, 2 * size
    real = getattr(np, element)
    numbers_at = float32_at if element == "float32" else float64_at
    steps = tuple(
        (r, butterfly(r, element, is_last=False), butterfly(r, element, is_last=True)) for r in RADICES
    )
    load = load_columns(element)
    store, store_with_roots = (store_columns(element, has_roots=one) for one in (False, True))

    @inlined
    def turn(step: Any, radix: Any, source: Any, target: Any, m: Any, s: Any, plane: Any, table: Any) -> None:
        row = s * vector
        for p in range(m):
            here, there, w = source + p * row, target + p * radix * row, table + p * (radix - 1) * pair
            for q in range(s):
                step(here + q * vector, m * row, there + q * vector, row, plane, w)

    def groups(chunk: int, args: Any) -> None:
        n = args[9]
        plane = n * vector + LINE
        room = part_of_thread(args[22], args[23], args[24])
        radices = int64_at(args[15])
        for group in range(chunk * args[13], min(args[12], (chunk + 1) * args[13])):
            first = group % args[11] * LANES
            count = min(LANES, args[10] - first)
            x = args[1] + group // args[11] * args[2] + first * args[4]
            y = args[5] + group // args[11] * args[6] + first * args[8]
            swapped = plane if args[20] else 0
            if args[4] == pair:
                for j in range(n):
                    place = room + j * vector
                    load(x + j * args[3], place + swapped, place + plane - swapped, count)
            else:
                for c in range(LANES):
                    column = x + min(c, count - 1) * args[4]
                    for j in range(n):
                        number = numbers_at(column + j * args[3])
                        place = room + j * vector + c * size
                        numbers_at(place + swapped)[0] = number[0]
                        numbers_at(place + plane - swapped)[0] = number[1]
            source, target = room, room + 2 * plane
            s, length, table = 1, n, args[16]
            for number in range(args[14]):
                radix = radices[number]
                m = length // radix
                for one, step, last in steps:
                    if radix == one:
                        if m == 1:
                            turn(last, one, source, target, m, s, plane, table)
                        else:
                            turn(step, one, source, target, m, s, plane, table)
                            table += m * (one - 1) * pair
                source, target, s, length = target, source, s * radix, m
            factor = real(vectors.float64_of_bits(args[19]))
            if args[8] == pair:
                for j in range(n):
                    place = source + j * vector
                    if args[17]:
                        w = args[17] + j * args[18] + first * pair
                        store_with_roots(place, place + plane, y + j * args[7], count, factor, args[21], w)
                    else:
                        store(place, place + plane, y + j * args[7], count, factor, args[21], 0)
            else:
                swapped = plane if args[21] else 0
                for c in range(count):
                    column = y + c * args[8]
                    for j in range(n):
                        number = numbers_at(column + j * args[7])
                        place = source + j * vector + c * size
                        number[0] = _one_nan(numbers_at(place + swapped)[0] * factor)
                        number[1] = _one_nan(numbers_at(place + plane - swapped)[0] * factor)

    return on_team(groups, name=f"fourier_{element}")


class Columns(NamedTuple):
    """Matrices in memory: strides in elements of matrices, along the transform, of columns."""

    tensor: Tensor
    strides: tuple[int, int, int]


def transform(
    source: Columns,
    target: Columns,
    sizes: tuple[int, int, int],
    *,
    passes: bool = True,
    factor: float = 1.0,
    exchange: tuple[bool, bool] = (False, False),
    results: Tensor | None = None,
    step: int = 0,
) -> None:
    """Transforms all columns of matrices, which are not empty; without `passes` it copies them.

    Args:
        source: complex numbers, or pairs of real ones.
        target: of the results.
        sizes: number of matrices, length of the transform, columns.
        passes: whether there is a transform.
        factor: of the results.
        exchange: whether real and imaginary parts are exchanged, before and after.
        results: roots by which the results are multiplied first, columns dense; only for dense columns.
        step: elements of them from one result to the next.
    """
    plan = _plan(
        target.tensor.dtype, source.strides, target.strides, sizes, passes, factor, exchange, step,
        torch.get_num_threads(),
    )  # fmt: skip
    memory = borrow(plan.memory)
    plan.kernel(
        plan.chunks,
        source.tensor.data_ptr(),
        *plan.source,
        target.tensor.data_ptr(),
        *plan.numbers,
        0 if results is None else results.data_ptr(),
        *plan.last,
        *(memory[1], plan.threads, plan.memory // plan.threads),
    )
    give_back(memory)


class _Plan(NamedTuple):
    """The arguments of the kernel that no tensor's address is."""

    kernel: OnTeam
    chunks: int
    threads: int
    memory: int
    source: tuple[int, ...]
    numbers: tuple[int, ...]
    last: tuple[int, ...]
    tables: PassTables
    """Kept, since `numbers` has their addresses."""


@lru_cache(maxsize=1024)
def _plan(
    dtype: torch.dtype,
    source: tuple[int, int, int],
    target: tuple[int, int, int],
    sizes: tuple[int, int, int],
    passes: bool,
    factor: float,
    exchange: tuple[bool, bool],
    step: int,
    threads: int,
) -> _Plan:
    element, width = ELEMENTS[dtype], dtype.itemsize
    matrices, n, columns = sizes
    made = tables(n if passes else 1, dtype)
    per_matrix = -(-columns // LANES)
    groups = matrices * per_matrix
    piece = max(1, _GRAIN // (n * LANES))
    chunks = -(-groups // piece)
    threads = min(threads, chunks)
    memory = -(-4 * (n * LANES * SIZE[element] + LINE) // LINE) * LINE
    numbers = (
        *(stride * width for stride in target),
        *(n, columns, per_matrix, groups, piece),
        *(len(made.radices), made.radices.data_ptr(), made.roots.data_ptr()),
    )
    last = step * width, bits_of(factor), *map(int, exchange)
    first = tuple(stride * width for stride in source)
    return _Plan(_kernel(element), chunks, threads, threads * memory, first, numbers, last, made)
