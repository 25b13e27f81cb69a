"""The elementary functions of the normal numbers, against the exact ones."""

import math
from functools import cache

import numpy as np
import pytest

from samebits._native import kernel
from samebits.random._cpu import elementary, uniform_normal_kernels

log_32 = kernel("float32(float32)")(elementary.log_32.function)
log_64 = kernel("float64(float64)")(elementary.log_64.function)
cos_sin_32 = kernel("UniTuple(float32, 2)(float32)")(elementary.cos_sin_32.function)
cos_sin_64 = kernel("UniTuple(float64, 2)(float64)")(elementary.cos_sin_64.function)
box_muller_32 = kernel("UniTuple(float32, 2)(float32, float32)")(elementary.box_muller_32.function)
box_muller_64 = kernel("UniTuple(float64, 2)(float64, float64)")(elementary.box_muller_64.function)
float32_in_0_1 = kernel("float32(uint64)")(uniform_normal_kernels._float32_in_0_1.function)


@kernel("void(float32[::1], float32[::1], float32[:, ::1])")
def evaluate(u, v, out):
    for i in range(u.size):
        out[0, i] = elementary.log_32(u[i])
        out[1, i], out[2, i] = elementary.cos_sin_32(v[i])
        out[3, i], out[4, i] = elementary.box_muller_32(u[i], v[i])


@cache
def uniforms():
    """Every 2**32 / 10**5th word, the words at both ends, and those around the steps of the functions."""
    steps = [quarter << 30 for quarter in (1, 2, 3)] + [int(2**32 * 0.5 ** (k + 0.5)) for k in range(12)]
    near = [np.arange(-500, 500) + step for step in steps]
    words = np.unique(
        np.concatenate([np.arange(0, 2**32, 42949), np.arange(999), 2**32 - 1 - np.arange(999), *near])
    )
    u = words.astype(np.uint32).astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    assert u.min() == 2.0**-33 and u.max() == 1
    return u


def exact(u, v):
    u, v = u.astype(np.longdouble), v.astype(np.longdouble)
    turn = 2 * np.longdouble("3.14159265358979323846264338327950288")
    quarters = np.round(4 * v)
    angle = (v - quarters / 4) * turn
    c, s, q = np.cos(angle), np.sin(angle), quarters.astype(int) % 4
    cos, sin = np.choose(q, [c, -s, -c, s]), np.choose(q, [s, c, -s, -c])
    log = np.log(u)
    radius = np.sqrt(-2 * log)
    return np.stack([log, cos, sin, radius * cos, radius * sin])


def relative_errors(u, v):
    out = np.empty((5, u.size), np.float32)
    evaluate(u, v, out)
    true = exact(u, v)
    assert (out[true == 0] == 0).all()
    return (np.abs(out - true) / np.where(true == 0, 1, np.abs(true))).max(1)


def test_float32_forms_are_accurate():
    """log, cos and sin have a relative error below 2**-22.5 for every kind of word, near their zeros too, and the normal
    numbers below 2**-22; one coefficient off by 2**-20 would be seen."""
    u = uniforms()
    for v in (u, u[::-1].copy(), np.roll(u, 12345)):
        errors = relative_errors(u, v)
        assert (errors[:3] < 2.0**-22.5).all() and (errors[3:] < 2.0**-22).all()
        assert (
            errors > 2.0**-25
        ).all()  # these are errors of float32: what is compared is not the same thing twice


def test_exact_places():
    """log 1 is 0, cosine and sine are exact at quarters of a turn, and no word gives a normal number beyond 6.8."""
    assert log_32(1.0) == 0 == log_64(1.0)
    assert log_64(0.5) == math.log(0.5)
    turns, results = (0.0, 0.25, 0.5, 0.75, 1.0), [(1, 0), (0, 1), (-1, 0), (0, -1), (1, 0)]
    assert [cos_sin_64(v) for v in turns] == results
    assert [cos_sin_32(v) for v in turns] == results
    for box_muller in (box_muller_32, box_muller_64):
        kind = np.float32 if box_muller is box_muller_32 else np.float64
        for u in (2.0**-33, 1.0):
            assert all(abs(z) < 6.8 for v in turns for z in box_muller(kind(u), kind(v)))


def test_signs_of_zeros():
    """A flipped sign is a flipped bit, so that the zero of a sine at half a turn is negative on every device."""
    assert math.copysign(1, cos_sin_32(0.5)[1]) == -1
    assert math.copysign(1, cos_sin_32(1.0)[1]) == 1


@pytest.mark.parametrize(
    ("word", "uniform"), [(0, 2.0**-33), (1, 1.5 * 2.0**-32), (2**31, 0.5), (2**32 - 1, 1.0)]
)
def test_uniforms_of_the_transform(word, uniform):
    """The uniforms of Box and Muller are in (0, 1]; the least is 2**-33."""
    assert float32_in_0_1(word) == uniform
