"""Connectionist temporal classification (Graves et al., 2006) in float64: each item of a batch is a chunk.

Targets are extended by blanks before, between and after. alpha[t, s] = log(exp(alpha[t-1, s]) + exp(alpha[t-1, s-1]) +
exp(alpha[t-1, s-2])) + p[t, s], the last one only where the class is not that of s - 2; sums by `log_of_sum`, in this order.
beta runs backwards alike. The gradient is (exp(p) - exp(c + loss - p)) g, c being the log of the sum of alpha beta over the
places s of a class, in order.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from samebits import _native as native
from samebits._native import inlined, vectors
from samebits._native.kernel_threads import OnTeam, float64_at, int64_at, on_team
from samebits.arithmetic.functions.exponential import exp_bounded_double
from samebits.arithmetic.softmax.exponential import log_of_sum

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


@cache
def alphas() -> OnTeam:
    """args: 1 log-probabilities (T, B, C) in float64; 2-5 targets of all items, their starts and lengths, input lengths;
    6-7 of results: alpha (B, T, S) and losses; 8-10 B, T, C; 11 S; 12 blank.
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


@cache
def gradients() -> OnTeam:
    """args: 1-5 as of `alphas`; 6-7 alpha and losses; 8-9 of results: beta (B, T, S) and gradients (T, B, C), zeros at first;
    10 gradients of the losses (B); 11-13 B, T, C; 14 S; 15 blank; 16 is 1 where infinite losses have no gradient.
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
