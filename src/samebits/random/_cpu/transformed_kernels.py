"""Words to exponential, Gumbel and truncated normal numbers, over rows: row k of `out` is drawn from key k.

A word w of L bits (32 for float32, 64 for float64) stands for the middle u = (w + 1/2) / 2**L of its
interval, in (0, 1). u and 1 - u are both known to the full precision of the dtype, and so is -log(u) over its
whole range: no number is zero or infinite. The tails end where the words do, at 22.9 (float32) and 45.1
(float64) of -log(u).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np
import torch

from samebits._native import inlined
from samebits._native.kernel_threads import OnTeam, as_argument, float_of
from samebits.random._cpu.elementary import log_32, log_64
from samebits.random._cpu.tiles import fill, tile_kernel
from samebits.random._cpu.uniform_normal_kernels import _TO, _float32_in_0_1, _float64_in_0_1

_LOW = np.uint32(2**32 - 1)
_HALF_32, _ONE_32, _2_32 = np.float32(0.5), np.float32(1.0), 2.0**-32
_PARAMETERS = 7


def transformed(name: str, keys: torch.Tensor, parameters: Sequence[float], out: torch.Tensor) -> None:
    """Writes numbers of a floating dtype that a transform makes of each word, or each two words for float64.

    Names and parameters: "exponential" (rate), "gumbel" (loc, scale), those of `_truncated` and `_far_tail`.
    """
    given = (*parameters, *[0.0] * (_PARAMETERS - len(parameters)))
    fill(_KERNELS[name, out.dtype], keys, out, *map(as_argument, given))


@inlined
def _uniform_32(words: Any, j: Any) -> Any:
    """Returns u and 1 - u for a word, each rounded."""
    return _float32_in_0_1(words[j]), _float32_in_0_1(np.uint32(words[j] ^ _LOW))


@inlined
def _uniform_32_exact(words: Any, j: Any) -> Any:
    """Returns u and 1 - u for a word, in float64."""
    return (np.float64(words[j]) + 0.5) * _2_32, (np.float64(np.uint32(words[j] ^ _LOW)) + 0.5) * _2_32


@inlined
def _uniform_64(words: Any, j: Any) -> Any:
    """Returns u and 1 - u for two words, the upper first, each rounded."""
    high, low = words[2 * j], words[2 * j + 1]
    return _float64_in_0_1(high, low), _float64_in_0_1(np.uint32(high ^ _LOW), np.uint32(low ^ _LOW))


@inlined
def minus_log_32(u: Any, complement: Any) -> Any:
    """Returns -log(u), corrected near 1 by the rounding error of u: log_32 is exact to an ulp."""
    return (complement - (_ONE_32 - u) if u >= _HALF_32 else np.float32(0.0)) - log_32(u)


@inlined
def minus_log_64(u: Any, complement: Any) -> Any:
    """Returns `minus_log_32` in float64."""
    return (complement - (1.0 - u) if u >= 0.5 else 0.0) - log_64(u)


@inlined
def _exponential_32(u: Any, complement: Any, p: Any) -> Any:
    return minus_log_32(u, complement) / np.float32(p[0])


@inlined
def _exponential_64(u: Any, complement: Any, p: Any) -> Any:
    return minus_log_64(u, complement) / p[0]


@inlined
def _gumbel_32(u: Any, complement: Any, p: Any) -> Any:
    x = minus_log_32(u, complement)
    return np.float32(p[0]) - np.float32(p[1]) * log_32(x)


@inlined
def _gumbel_64(u: Any, complement: Any, p: Any) -> Any:
    x = minus_log_64(u, complement)
    return p[0] - p[1] * log_64(x)


@inlined
def _truncated(u: Any, complement: Any, p: Any) -> Any:
    """Returns mean + std z, inside the bounds; the probability below z is `below` + u `within`."""
    below, above, within, mean, std, low, high = p[0], p[1], p[2], p[3], p[4], p[5], p[6]
    z = normal_quantile(below + u * within, above + complement * within)
    return min(max(mean + std * z, low), high)


@inlined
def _polynomial(x: Any, c: Any) -> Any:
    return ((((((c[7] * x + c[6]) * x + c[5]) * x + c[4]) * x + c[3]) * x + c[2]) * x + c[1]) * x + c[0]


# Wichura, AS 241: The percentage points of the normal distribution (PPND16). Applied Statistics 37, 1988.
# Numerators and denominators, constant term first: the middle, the tails, the far tails.
# fmt: off
_A = (3.387132872796366608, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
    4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3)
_B = (1.0, 4.2313330701600911252e1, 6.871870074920579083e2, 5.3941960214247511077e3,
    2.1213794301586595867e4, 3.930789580009271061e4, 2.8729085735721942674e4, 5.226495278852854561e3)
_C = (1.42343711074968357734, 4.6303378461565452959, 5.7694972214606914055, 3.64784832476320460504,
    1.27045825245236838258, 2.4178072517745061177e-1, 2.27238449892691845833e-2, 7.7454501427834140764e-4)
_D = (1.0, 2.05319162663775882187, 1.6763848301838038494, 6.8976733498510000455e-1,
    1.4810397642748007459e-1, 1.51986665636164571966e-2, 5.475938084995344946e-4, 1.05075007164441684324e-9)
_E = (6.6579046435011037772, 5.4637849111641143699, 1.7848265399172913358, 2.9656057182850489123e-1,
    2.6532189526576123093e-2, 1.2426609473880784386e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7)
_F = (1.0, 5.9983220655588793769e-1, 1.3692988092273580531e-1, 1.48753612908506148525e-2,
    7.868691311456132591e-4, 1.8463183175100546818e-5, 1.4215117583164458887e-7, 2.04426310338993978564e-15)
# fmt: on


@inlined
def normal_quantile(below: Any, above: Any) -> Any:
    """Returns the normal quantile of probabilities `below` and `above`: of sum 1, the smaller one exact."""
    left = below < above
    tail = below if left else above
    middle = 0.5 - tail
    r = 0.180625 - middle * middle
    inner = middle * _polynomial(r, _A) / _polynomial(r, _B)
    r = math.sqrt(-log_64(tail))
    near, far = r - 1.6, r - 5.0
    outer = _polynomial(near, _C) / _polynomial(near, _D)
    outer = outer if near <= 3.4 else _polynomial(far, _E) / _polynomial(far, _F)
    size = inner if middle <= 0.425 else outer
    return -size if left else size


# 1 / m(x) = x + 1/x - 2/x**3 + 10/x**5 - ... for Mills's ratio m; the integral of x - 1/m(x) is log m(x).
_LOG_MILLS = tuple(
    c / (2 * k) for k, c in enumerate((-2.0, 10.0, -74.0, 706.0, -8162.0, 110410.0, -1708394.0), 1)
)


@inlined
def _log_mills_rest(w: Any) -> Any:
    """Returns log(x m(x)) for x >= 36 and w = 1 / x**2."""
    rest = _LOG_MILLS[6]
    for k in range(5, -1, -1):
        rest = rest * w + _LOG_MILLS[k]
    return rest * w


@inlined
def _far_tail(u: Any, complement: Any, p: Any) -> Any:
    """Returns bound + std d with Q(a + d) = Q(a) (1 - u within), a >= 36 the deviations of the bound.

    With t = -log(1 - u within): a d + d**2 / 2 + log(1 + d/a) - (rest(a + d) - rest(a)) = t. The logarithms
    are small against t, and each step of the iteration multiplies the error by 1 / a**2.
    """
    a, beyond, within, bound, std, low, high = p[0], p[1], p[2], p[3], p[4], p[5], p[6]
    v, u = (complement, u) if std > 0.0 else (u, complement)
    t = minus_log_64(beyond + v * within, u * within)
    inverse = 1.0 / a
    at_a = _log_mills_rest(inverse * inverse)
    d, relative = 0.0, 0.0
    for _ in range(6):
        shrunk = 1.0 / (1.0 + relative)
        x_inverse = inverse * shrunk
        log_ratio = minus_log_64(shrunk, relative * shrunk)
        half = (t - log_ratio + (_log_mills_rest(x_inverse * x_inverse) - at_a)) * inverse
        d = 2.0 * half / (1.0 + math.sqrt(1.0 + 2.0 * half * inverse))
        relative = d * inverse
    return min(max(bound + std * d, low), high)


def _kernel(name: str, transform: Any, uniform: Any, dtype: torch.dtype) -> OnTeam:
    pointer, rounded = _TO[dtype]
    real = np.float64 if dtype is torch.float64 else np.float32

    @inlined
    def store(words: Any, count: Any, at: Any, args: Any) -> None:
        out = pointer(args[4])
        a, b, c, d = float_of(args[5]), float_of(args[6]), float_of(args[7]), float_of(args[8])
        p = (a, b, c, d, float_of(args[9]), float_of(args[10]), float_of(args[11]))
        for j in range(count):
            u, complement = uniform(words, j)
            out[at + j] = rounded(real(transform(u, complement, p)))

    return tile_kernel(store, 8 if dtype is torch.float64 else 4, f"{name}_{dtype}")


_TRANSFORMS = {
    "exponential": (_exponential_32, _uniform_32, _exponential_64),
    "gumbel": (_gumbel_32, _uniform_32, _gumbel_64),
    "truncated": (_truncated, _uniform_32_exact, _truncated),
    "far_tail": (_far_tail, _uniform_32_exact, _far_tail),
}
_KERNELS = {
    (name, dtype): _kernel(name, double if dtype is torch.float64 else single, uniform, dtype)
    for name, (single, of_word, double) in _TRANSFORMS.items()
    for dtype in _TO
    for uniform in [_uniform_64 if dtype is torch.float64 else of_word]
}


# Probabilities of the normal distribution's tails, in decimal arithmetic: the same digits with every libm.
#
# Below 3 by the Taylor series Phi(x) = 1/2 + phi(x) (x + x**3 / 3 + x**5 / (3 5) + ...), above by the
# continued fraction Q(x) = phi(x) / (x + 1 / (x + 2 / (x + 3 / (x + ...)))) (Abramowitz and Stegun, 26.2.11
# and 26.2.14).


_DIGITS = 60
_SQRT_TAU = Decimal("2.506628274631000502415765284811045253006986740609938316629923576")
_SERIES_BELOW = 3
_SERIES_TERMS = 100  # 9**100 / (3 5 ... 201) is below 10**-90
_FRACTION_TERMS = 400


def exact() -> AbstractContextManager[Context]:
    """Returns the decimal context of the functions below: 60 digits, exponents for every value."""
    return localcontext(Context(prec=_DIGITS, Emin=-(10**17), Emax=10**17))


def upper_tail(x: Decimal) -> Decimal:
    """Returns Q(x), the probability of a standard normal above x, to some 50 digits. Call under `exact()`."""
    if x.is_infinite():
        return Decimal(x < 0)
    if x < 0:
        return 1 - upper_tail(-x)
    density = (-x * x / 2).exp() / _SQRT_TAU
    if x >= _SERIES_BELOW:
        return density * mills_ratio(x)
    term = total = x
    for k in range(1, _SERIES_TERMS):
        term = term * x * x / (2 * k + 1)
        total += term
    return Decimal("0.5") - density * total


def mills_ratio(x: Decimal) -> Decimal:
    """Returns Q(x) / phi(x) for x >= 3."""
    denominator = x
    for k in range(_FRACTION_TERMS, 0, -1):
        denominator = x + k / denominator
    return 1 / denominator


def between(a: Decimal, b: Decimal) -> Decimal:
    """Returns the probability that a standard normal is between a and b, without cancellation of tails."""
    if a >= 0:
        return upper_tail(a) - upper_tail(b)
    if b <= 0:
        return upper_tail(-b) - upper_tail(-a)
    return 1 - upper_tail(b) - upper_tail(-a)


def tails_ratio(a: Decimal, b: Decimal) -> Decimal:
    """Returns Q(b) / Q(a) for b >= a >= 3; no tail is too far out."""
    if b.is_infinite():
        return Decimal(0)
    return ((a - b) * (a + b) / 2).exp() * mills_ratio(b) / mills_ratio(a)
