"""Losses.

The negative log-likelihood with targets t and weights w (1, if there are none), over the items i in row-major
order of the targets: terms -w[t[i]] x[i, t[i]] and weights w[t[i]], both 0 where t[i] is to be ignored; S of
the terms, for the mean divided by S of the weights (S: `reductions`), in float32 (float64 for float64),
rounded once to the type of x.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits import _native as native
from samebits._native import inlined, vectors
from samebits._native.kernel_threads import OnTeam, float64_at, int64_at, on_team, variants
from samebits.arithmetic.functions.exponential import exp_bounded_double
from samebits.arithmetic.reductions.kernels import finished
from samebits.arithmetic.reductions.running import room_of_sums, sum_of_run
from samebits.arithmetic.reductions.tensors import MEMORY, lanes_type, reduce
from samebits.arithmetic.softmax.rows import log_of_sum

# The negative log-likelihood of items (N, C, ...) for targets (N, ...).


_PIECE = 1 << 13
"""Items of a chunk."""
NONE, MEAN, SUM = range(3)
"""torch's numbers of reductions."""
_splat = vectors.splat


@variants(memory=vectors.SIZE)
def _kernel(memory: str) -> OnTeam:
    """args: 1-5 addresses of x, targets, weights, terms, terms' weights; 6 of the number of targets that are
    not there; 7 items; 8 classes; 9 places of an item (of H x W); 10 target to be ignored; 11 reduction, if
    there is one chunk, else 0; 12-13 addresses of the loss and of the total weight. Terms, weights and
    results are in the lanes' type.
    """
    lanes_type = vectors.COMPUTED[memory]
    real, size, width = getattr(np, lanes_type), vectors.SIZE[memory], vectors.SIZE[lanes_type]
    load, load_one, store_one = (
        vectors.LOAD_ONE[memory],
        vectors.LOAD_ONE[lanes_type],
        vectors.STORE_ONE[lanes_type],
    )
    total_of = sum_of_run("sum", lanes_type)

    def items(chunk: int, args: Any) -> None:
        classes, places = args[8], args[9]
        targets = native.carray(int64_at(args[2]), (args[7],))
        wrong = 0
        for i in range(chunk * _PIECE, min(args[7], (chunk + 1) * _PIECE)):
            target, weight, term = targets[i], real(0), real(0)
            if target != args[10]:
                if target < 0 or target >= classes:
                    wrong += 1
                else:
                    outer, inner = (i // places, i % places) if places > 1 else (i, 0)
                    weight = load_one(args[3] + target * width) if args[3] else real(1)
                    term = -weight * load(args[1] + ((outer * classes + target) * places + inner) * size)
            store_one(args[4] + i * width, term)
            store_one(args[5] + i * width, weight)
        if wrong:
            native.carray(int64_at(args[6]), (1,))[0] = wrong
        if args[11]:
            room, none = room_of_sums(), _splat(real(0))
            weight = total_of(args[5], args[5], args[7], none, room)
            loss = total_of(args[4], args[4], args[7], none, room)
            store_one(args[12], finished(loss, 1 if args[11] == MEAN else 0, weight))
            store_one(args[13], finished(weight, 0, weight))

    return on_team(items, name=f"likelihood_{memory}", is_vectorized=True)


def likelihood(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor] | None:
    """Returns the loss and the total weight; None if a target is no class.

    Args:
        x: contiguous log-probabilities (N, C, ...).
        target: contiguous int64 (N, ...).
        weight: of the classes, of the type of `x`.
        reduction: torch's number.
        ignored: the target whose items count nothing.
    """
    count, classes, items = target.numel(), x.shape[1], target.shape[0]
    kind = lanes_type(x)
    terms, wrong = torch.empty(2 * count, dtype=kind), ctypes.c_int64(0)
    loss, total = torch.empty((), dtype=kind), torch.empty((), dtype=kind)
    w = None if weight is None else weight.to(kind).contiguous()
    chunks, at = -(-count // _PIECE), terms.data_ptr()
    _kernel(MEMORY[x.dtype])(
        chunks,
        x.data_ptr(),
        target.data_ptr(),
        0 if w is None else w.data_ptr(),
        at,
        at + count * terms.element_size(),
        ctypes.addressof(wrong),
        count,
        classes,
        count // items,
        ignored,
        reduction if chunks == 1 else NONE,
        loss.data_ptr(),
        total.data_ptr(),
    )
    if wrong.value:
        return None
    if reduction == NONE:
        return terms[:count].view(target.shape).to(x.dtype, copy=True), torch.zeros((), dtype=x.dtype)
    if chunks > 1:
        loss, total = reduce("sum", terms.view(2, count), (1,)).unbind()
        if reduction == MEAN:
            loss = loss / total
            loss = torch.where(loss.isnan(), torch.nan, loss)
    if kind is x.dtype and chunks == 1:
        return loss, total
    return loss.to(x.dtype, copy=True), total.to(x.dtype, copy=True)


# Connectionist temporal classification (Graves et al., 2006) in float64: each item of a batch is a chunk.
#
# Targets are extended by blanks before, between and after. alpha[t, s] = log(exp(alpha[t-1, s]) +
# exp(alpha[t-1, s-1]) + exp(alpha[t-1, s-2])) + p[t, s], the last one only where the class is not that of s
# - 2; sums by `log_of_sum`, in this order. beta runs backwards alike. The gradient is (exp(p) - exp(c +
# loss - p)) g, c being the log of the sum of alpha beta over the places s of a class, in order.


_one_nan = vectors.one_nan


@inlined
def _class(targets: Any, place: Any, blank: Any) -> Any:
    """The class at a place of the extended targets."""
    return targets[place >> 1] if place & 1 else blank


@inlined
def _step(row: Any, place: Any, other: Any, third: Any, skips: Any) -> Any:
    """The log of the sum of the ways to a place; `other` and `third` are -inf where they are outside."""
    total = log_of_sum(row[place], other)
    return log_of_sum(total, third) if skips else total


@variants()
def alphas() -> OnTeam:
    """args: 1 log-probabilities (T, B, C) in float64; 2-5 targets of all items, their starts and lengths,
    input lengths; 6-7 of results: alpha (B, T, S) and losses; 8-10 B, T, C; 11 S; 12 blank.
    """

    def item(b: int, args: Any) -> None:
        batch, times, classes, places, blank = args[8], args[9], args[10], args[11], args[12]
        p = native.carray(float64_at(args[1]), (times, batch, classes))
        start = native.carray(int64_at(args[3]), (batch,))[b]
        length = native.carray(int64_at(args[4]), (batch,))[b]
        inputs = native.carray(int64_at(args[5]), (batch,))[b]
        targets = native.carray(int64_at(args[2]), (start + length,))[start:]
        alpha = native.carray(float64_at(args[6]), (batch, times, places))[b]
        losses = native.carray(float64_at(args[7]), (batch,))
        alpha[:, :] = -np.inf
        count = 2 * length + 1
        if inputs == 0:
            losses[b] = 0.0 if length == 0 else np.inf
        else:
            alpha[0, 0] = p[0, b, blank]
            if length:
                alpha[0, 1] = p[0, b, targets[0]]
            for t in range(1, inputs):
                for s in range(count):
                    here = _class(targets, s, blank)
                    second = alpha[t - 1, s - 1] if s > 0 else -np.inf
                    skips = s > 1 and _class(targets, s - 2, blank) != here
                    third = alpha[t - 1, s - 2] if skips else -np.inf
                    alpha[t, s] = _step(alpha[t - 1], s, second, third, skips) + p[t, b, here]
            total = alpha[inputs - 1, count - 1]
            if length:
                total = log_of_sum(total, alpha[inputs - 1, count - 2])
            losses[b] = _one_nan(-total)

    return on_team(item, name="ctc_alphas")


@variants()
def gradients() -> OnTeam:
    """args: 1-5 as of `alphas`; 6-7 alpha and losses; 8-9 of results: beta (B, T, S) and gradients (T, B, C),
    zeros at first; 10 gradients of the losses (B); 11-13 B, T, C; 14 S; 15 blank; 16 is 1 where infinite
    losses have no gradient.
    """

    def item(b: int, args: Any) -> None:
        batch, times, classes, places, blank = args[11], args[12], args[13], args[14], args[15]
        p = native.carray(float64_at(args[1]), (times, batch, classes))
        start = native.carray(int64_at(args[3]), (batch,))[b]
        length = native.carray(int64_at(args[4]), (batch,))[b]
        inputs = native.carray(int64_at(args[5]), (batch,))[b]
        targets = native.carray(int64_at(args[2]), (start + length,))[start:]
        alpha = native.carray(float64_at(args[6]), (batch, times, places))[b]
        loss = native.carray(float64_at(args[7]), (batch,))[b]
        beta = native.carray(float64_at(args[8]), (batch, times, places))[b]
        grad = native.carray(float64_at(args[9]), (times, batch, classes))
        factor = native.carray(float64_at(args[10]), (batch,))[b]
        beta[:, :] = -np.inf
        count = 2 * length + 1
        if inputs > 0 and not (args[16] and loss == np.inf):
            beta[inputs - 1, count - 1] = p[inputs - 1, b, blank]
            if length:
                beta[inputs - 1, count - 2] = p[inputs - 1, b, targets[length - 1]]
            for t in range(inputs - 2, -1, -1):
                for s in range(count):
                    here = _class(targets, s, blank)
                    second = beta[t + 1, s + 1] if s < count - 1 else -np.inf
                    skips = s < count - 2 and _class(targets, s + 2, blank) != here
                    third = beta[t + 1, s + 2] if skips else -np.inf
                    beta[t, s] = _step(beta[t + 1], s, second, third, skips) + p[t, b, here]
            for t in range(inputs):
                row = grad[t, b]
                row[:] = -np.inf
                for s in range(count):
                    here = _class(targets, s, blank)
                    row[here] = log_of_sum(row[here], alpha[t, s] + beta[t, s])
                for c in range(classes):
                    way = row[c] + loss - p[t, b, c]
                    row[c] = _one_nan((exp_bounded_double(p[t, b, c]) - exp_bounded_double(way)) * factor)

    return on_team(item, name="ctc_gradients")
