"""Softmax along runs of memory: one row after the other, three times through it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from samebits._native import Part, inlined, vectors
from samebits._native.formula import fma, formula
from samebits._native.kernel_threads import OnTeam, on_team, variants
from samebits.arithmetic.functions.exponential import exp_bounded_double, exp_narrow
from samebits.arithmetic.functions.logarithm import log_by_series
from samebits.arithmetic.reductions.definition import BLOCK
from samebits.arithmetic.reductions.running import room_of_sums, running, sum_of_run
from samebits.arithmetic.softmax.definition import is_made

# exp and log as softmax and its like use them, and the log of a sum of two exponentials, in kernels.


EXP = {"float32": exp_narrow, "float64": exp_bounded_double}
"""By the type that is computed in; of numbers and of vectors."""


@formula
def _quotient_narrow(x: Any, divisor: Any) -> Any:
    """Returns x / divisor, for 0 <= x <= 1 <= divisor, from the inverse of the divisor.

    The remainder is exact for x above 2^-100, so that the result is rounded correctly (Markstein 1990).
    """
    inverse = 1.0 / divisor
    first = x * inverse
    near = fma(fma(-first, divisor, x), inverse, first)
    return (~(x >= 2.0**-100)).rarely(near, lambda: x / divisor)


@cache
def softmax_value(lanes_type: str, *, log: bool, is_exp: bool) -> Part:
    """Returns the part of kernels (x, center, divisor) for a vector of softmax, or of its logarithm.

    `is_exp`: x is exp(x - center) already. For the logarithm, `divisor` is that of the sum.
    """
    exp, one_nan, is_narrow = EXP[lanes_type], vectors.one_nan, lanes_type == "float32"

    @inlined
    def value(x: Any, center: Any, divisor: Any) -> Any:
        if log and not is_exp:
            made = (x - center) - divisor
        else:
            e = x if is_exp else exp(x - center)
            made = _quotient_narrow(e, divisor) if is_narrow else e / divisor
        return one_nan(made)

    return value


@inlined
def log_of_sum(x: Any, y: Any) -> Any:
    """Returns log(exp(x) + exp(y)) of float64 numbers: the larger one plus log(1 + exp(the difference))."""
    high, low = (x, y) if x > y else (y, x)
    if np.isnan(x) or np.isnan(y):
        result = np.float64(np.nan)
    elif np.isinf(high):
        result = high
    else:
        result = high + log_by_series(1.0 + exp_bounded_double(low - high))
    return result


_splat, _first_of, _added, _one_nan = vectors.splat, vectors.first_of, vectors.added, vectors.one_nan
_largest, _where_less, _fma = vectors.largest, vectors.where_less, vectors.fma
_SHORT = 4096
"""Numbers in a row whose exponentials are kept, in the first level of cache, where results are shorter."""
_row_room = vectors.stack(4 * _SHORT)


@cache
def _maximum(memory: str) -> Part:
    """Returns the part of kernels for the largest number of a run that is no NaN."""
    read, size = vectors.LOAD[memory], vectors.SIZE[memory]
    real = getattr(np, vectors.COMPUTED[memory])

    @inlined
    def maximum(x: Any, count: Any) -> Any:
        best = _splat(real(-np.inf))
        whole, rest = count >> 4, count & 15
        for i in range(whole):
            here = read(x + i * 16 * size)
            best = _where_less(best, here, here, best)
        if rest:
            here = _first_of(rest, read(x + whole * 16 * size, rest), best)
            best = _where_less(best, here, here, best)
        return _largest(best)

    return maximum


@cache
def _exponentials(memory: str, *, stored: bool) -> Part:
    """Returns the part of kernels for S(exp(x - m)) of a run; the exponentials are written, if `stored`."""
    read, size = vectors.LOAD[memory], vectors.SIZE[memory]
    lanes_type = vectors.COMPUTED[memory]
    real, exp = getattr(np, lanes_type), EXP[lanes_type]
    store, step = vectors.STORE[lanes_type], vectors.SIZE[lanes_type]
    push, total = running(lanes_type)

    @inlined
    def sum_of_block(x: Any, out: Any, count: Any, center: Any) -> Any:
        lanes = _splat(real(0))
        whole, rest = count >> 4, count & 15
        for i in range(whole):
            e = exp(read(x + i * 16 * size) - center)
            lanes = lanes + e
            if stored:
                store(out + i * 16 * step, e)
        if rest:
            e = exp(read(x + whole * 16 * size, rest) - center)
            lanes = _first_of(rest, lanes + e, lanes)
            if stored:
                store(out + whole * 16 * step, e, rest)
        return _added(lanes)

    @inlined
    def exponentials(x: Any, out: Any, count: Any, center: Any, room: Any) -> Any:
        blocks = (count + BLOCK - 1) >> 8
        for number in range(blocks):
            first = number * BLOCK
            some = min(BLOCK, count - first)
            push(room, number, sum_of_block(x + first * size, out + first * step, some, center))
        return total(room, blocks)

    return exponentials


@variants(memory=vectors.SIZE, result=vectors.SIZE, log=(False, True), only=is_made)
def softmax_rows(memory: str, result: str, *, log: bool) -> OnTeam:
    """args: 1-2 addresses of x and of the results; 3 rows; 4 their length; 5 rows of a chunk; 6 address of
    the logarithms of the sums of exp(x), or 0; 7 queries of causal attention, or 0: row i of them is softmax
    of i + 1 numbers, then zeros.
    """
    lanes_type = vectors.COMPUTED[memory]
    in_place = not log and result == lanes_type
    maximum, exponentials = _maximum(memory), _exponentials(memory, stored=False)
    kept_exponentials = _exponentials(memory, stored=True)
    read, size = vectors.LOAD[memory], vectors.SIZE[memory]
    load, store, step = vectors.LOAD[lanes_type], vectors.STORE[result], vectors.SIZE[result]
    store_total, width = vectors.STORE_ONE[lanes_type], vectors.SIZE[lanes_type]
    real, value = getattr(np, lanes_type), softmax_value(lanes_type, log=log, is_exp=False)
    quotient = softmax_value(lanes_type, log=log, is_exp=True)

    def rows(chunk: int, args: Any) -> None:
        length, room, kept_row = args[4], room_of_sums(), _row_room()
        for row in range(chunk * args[5], min(args[3], (chunk + 1) * args[5])):
            x, out = args[1] + row * length * size, args[2] + row * length * step
            shown = min(length, row % args[7] + 1) if args[7] else length
            whole, rest = shown >> 4, shown & 15
            best = maximum(x, shown)
            center = _splat(best)
            kept = True if in_place else (False if log else shown <= _SHORT)
            e = out if in_place else kept_row
            if kept:
                total = kept_exponentials(x, e, shown, center, room)
            else:
                total = exponentials(x, e, shown, center, room)
            divisor = _splat(real(log_by_series(np.float64(total))) if log else total)
            if args[6]:
                store_total(args[6] + row * width, _one_nan(best + real(log_by_series(np.float64(total)))))
            if kept:
                for i in range(whole):
                    store(out + i * 16 * step, quotient(load(e + i * 16 * width), center, divisor))
                if rest:
                    last = load(e + whole * 16 * width, rest)
                    store(out + whole * 16 * step, quotient(last, center, divisor), rest)
            else:
                for i in range(whole):
                    store(out + i * 16 * step, value(read(x + i * 16 * size), center, divisor))
                if rest:
                    last = read(x + whole * 16 * size, rest)
                    store(out + whole * 16 * step, value(last, center, divisor), rest)
            for i in range(shown, length, 16):
                store(out + i * step, _splat(real(0)), min(16, length - i))

    return on_team(rows, name=f"softmax_rows_{memory}_{result}_{log}")


@variants(memory=vectors.SIZE, result=vectors.SIZE, log=(False, True), only=is_made)
def softmax_gradient_rows(memory: str, result: str, *, log: bool) -> OnTeam:
    """args: 1-3 addresses of g, y and of the results; 4 rows; 5 their length; 6 rows of a chunk."""
    lanes_type = vectors.COMPUTED[memory]
    reduced = sum_of_run("sum" if log else "dot", memory)
    read, size = vectors.LOAD[memory], vectors.SIZE[memory]
    store, step = vectors.STORE[result], vectors.SIZE[result]
    real, exp = getattr(np, lanes_type), EXP[lanes_type]

    @inlined
    def value(g: Any, y: Any, total: Any) -> Any:
        made = _fma(exp(y), total, g) if log else y * (g + total)
        return _one_nan(made)

    def rows(chunk: int, args: Any) -> None:
        length, room = args[5], room_of_sums()
        whole, rest = length >> 4, length & 15
        for row in range(chunk * args[6], min(args[4], (chunk + 1) * args[6])):
            g, y = args[1] + row * length * size, args[2] + row * length * size
            out = args[3] + row * length * step
            total = _splat(real(0) - reduced(g, y, length, _splat(real(0)), room))
            for i in range(whole):
                here = i * 16 * size
                store(out + i * 16 * step, value(read(g + here), read(y + here), total))
            if rest:
                here = whole * 16 * size
                made = value(read(g + here, rest), read(y + here, rest), total)
                store(out + whole * 16 * step, made, rest)

    return on_team(rows, name=f"softmax_gradient_rows_{memory}_{result}_{log}")
