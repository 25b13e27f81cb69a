"""The definitions of `arithmetic`, step by step in NumPy, each independent of the kernels, vectors, threads and batches.

Products are in `product_reference`, sums in `exact_sums`, formulas by `exact_numbers`.
"""

import math

import numpy as np
import torch

from exact_numbers import ExactNumber
from exact_sums import fma, reduced, square, times
from product_reference import fma64, reference
from samebits.arithmetic.fourier.roots import roots
from samebits.arithmetic.functions.exponential import exp_bounded_double, exp_narrow
from samebits.arithmetic.functions.logarithm import log_by_series
from samebits.arithmetic.linear_algebra.definition import BLOCK
from samebits.arithmetic.recurrent import lstm_cell

# Functions of elements.


def applied(formula, *columns, wide=False):
    """A formula on rows of numbers, one operation at a time; `wide`: in float64, rounded once to float32."""
    kind = "float64" if wide or columns[0].dtype == np.float64 else "float32"
    found = [
        formula(*(ExactNumber(number, kind) for number in row)).value
        for row in zip(*(column.tolist() for column in columns), strict=True)
    ]
    with np.errstate(over="ignore"):
        return np.array(found).astype(columns[0].dtype)


# Softmax of a row, and its gradient.


def softmax(x, *, log=False):
    """The largest is taken off before; the sum is that of reductions."""
    size = x - x.max()
    e = applied(exp_narrow if x.dtype == np.float32 else exp_bounded_double, size)
    if log:
        return size - applied(log_by_series, np.array([reduced(e)], np.float64)).astype(x.dtype)
    return e / reduced(e)


def softmax_gradient(grad, y):
    return y * (grad - reduced(np.stack([grad, y], 1), times))


# Normalization of a row.


def layer_norm(x, w, b, eps):
    real = x.dtype.type
    mean = reduced(x) / real(len(x))
    rstd = real(1) / np.sqrt(reduced(x - mean, square) / real(len(x)) + real(eps))
    return fma((x - mean) * rstd, w, b)


def batch_norm(x, w, b, eps):
    """Of one channel, whose weight and bias are numbers: sums in float64, then one fma."""
    real, wide = x.dtype.type, x.astype(np.float64)
    mean = reduced(wide) / len(x)
    istd = real(1 / np.sqrt(reduced(wide - mean, square) / len(x) + eps))
    return fma(x - real(mean), np.full_like(x, istd * real(w)), np.full_like(x, b))


# Losses.


def likelihood(x, target, weight, ignored):
    """The mean of the negative log-likelihoods of items (N, C)."""
    there = target != ignored
    chosen = np.where(there, target, 0)
    weights = np.where(there, weight[chosen], 0).astype(x.dtype)
    terms = np.where(there, -weights * x[np.arange(len(x)), chosen], 0).astype(x.dtype)
    return reduced(terms) / reduced(weights)


# Convolutions of (N, C, Y, X) in one group, each as a product.


def taps(x, kernel, outputs, padding, stride=1, dilation=1):
    """What each tap multiplies: (N, C, kernel rows, kernel columns, output rows, output columns)."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    (height, width), (rows, columns) = kernel, outputs
    found = np.empty((*x.shape[:2], *kernel, *outputs), x.dtype)
    for i in range(height):
        for j in range(width):
            above, left = i * dilation, j * dilation
            found[:, :, i, j] = x[
                :, :, above : above + stride * rows : stride, left : left + stride * columns : stride
            ][:, :, :rows, :columns]
    return found


def product(a, b):
    return reference(
        torch.from_numpy(np.ascontiguousarray(a)), torch.from_numpy(np.ascontiguousarray(b))
    ).numpy()


def convolution(x, weight, bias, outputs, **steps):
    columns = taps(x, weight.shape[2:], outputs, **steps)
    matrix = weight.reshape(len(weight), -1)
    made = [product(matrix, one.reshape(matrix.shape[1], -1)) + bias[:, None] for one in columns]
    return np.stack(made).reshape(len(x), len(weight), *outputs)


def convolution_input_gradient(grad, weight, sizes, padding):
    """With a stride of 1: taps beside the output's gradient multiply zeros."""
    outputs, channels, height, width = weight.shape
    flipped = taps(grad, (height, width), sizes, padding=height - 1 - padding)[:, :, ::-1, ::-1]
    matrix = weight.transpose(1, 0, 2, 3).reshape(channels, -1)
    made = [product(matrix, one.reshape(matrix.shape[1], -1)) for one in flipped]
    return np.stack(made).reshape(len(grad), channels, *sizes)


def convolution_weight_gradient(x, grad, kernel, **steps):
    columns = taps(x, kernel, grad.shape[2:], **steps).transpose(0, 4, 5, 1, 2, 3)
    rows = grad.transpose(1, 0, 2, 3).reshape(grad.shape[1], -1)
    return product(rows, columns.reshape(rows.shape[1], -1)).reshape(grad.shape[1], x.shape[1], *kernel)


# Recurrent layers.


def lstm(x, h, c, weights, biases):
    """The outputs (steps, batch, hidden): products with the biases, and the cell by exact numbers."""
    found = []
    for step in x:
        given, back = (
            reference(torch.from_numpy(a), torch.from_numpy(w.T.copy()), torch.from_numpy(b)).numpy()
            for a, w, b in zip((step, h), weights, biases, strict=True)
        )
        columns = [gate.ravel() for both in (back, given) for gate in np.split(both, 4, 1)]
        cell = [
            lstm_cell(lambda number: number, *(ExactNumber(number, "float32") for number in row))
            for row in zip(*(column.tolist() for column in (*columns, c.ravel())), strict=True)
        ]
        c, h = (np.array([one[place].value for one in cell], np.float32).reshape(h.shape) for place in (5, 6))
        found.append(h)
    return np.stack(found)


# Complex numbers.


def complex_parts(name, x, y):
    """The parts of a product or quotient of complex tensors, one operation after the other."""
    a, b, c, d = (part.numpy() for z in (x, y) for part in (z.real.clone(), z.imag.clone()))
    if name == "mul":
        return a * c - b * d, a * d + b * c
    a, b, c, d = (part.astype(np.float64) for part in (a, b, c, d))
    flat = np.abs(c) >= np.abs(d)
    r = np.where(flat, d, c) / np.where(flat, c, d)
    s = np.where(flat, c, d) + np.where(flat, d, c) * r
    return np.where(flat, a + b * r, a * r + b) / s, np.where(flat, b - a * r, b * r - a) / s


# Linear algebra, in float64.


def solved(t, b, *, upper=False, unit=False):
    """The definition of a triangular system: rows in order, products of blocks first."""
    n, x = len(t), b.copy()
    for start in reversed(range(0, n, BLOCK)) if upper else range(0, n, BLOCK):
        end = min(start + BLOCK, n)
        known = slice(end, n) if upper else slice(0, start)
        if known.start < known.stop:
            done = reference(torch.from_numpy(t[start:end, known].copy()), torch.from_numpy(x[known].copy()))
            x[start:end] = x[start:end] - done.numpy()
        rows = [*range(start, end)][:: -1 if upper else 1]
        for place, i in enumerate(rows):
            for j in rows[:place]:
                x[i] = fma64(np.full_like(x[i], -t[i, j]), x[j], x[i])
            if not unit:
                x[i] = x[i] / t[i, i]
    return x


def cholesky(a):
    """The upper factor of a symmetric matrix; below the diagonal it has no meaning."""
    n = len(a)
    factor = a.copy()
    for start in range(0, n, BLOCK):
        end = min(start + BLOCK, n)
        if start:
            above = torch.from_numpy(factor[:start, start:].copy())
            factor[start:end, start:] -= reference(above[:, : end - start].mT.contiguous(), above).numpy()
        for k in range(start, end):
            factor[k, k:] = np.append(np.sqrt(factor[k, k]), factor[k, k + 1 :] / np.sqrt(factor[k, k]))
            for j in range(k + 1, end):
                factor[j, j:] = fma64(np.full(n - j, -factor[k, j]), factor[k, j:], factor[j, j:])
    return factor


def lu_of(a):
    """Both factors in one matrix, and the rows (from 1 on) that were exchanged with each."""
    (rows, columns), shape, expected, pivots = a.shape, a.shape, a.copy(), []
    for start in range(0, min(shape), BLOCK):
        end = min(start + BLOCK, *shape)
        for k in range(start, end):
            place = k + int(np.argmax(np.abs(expected[k:, k])))
            pivots.append(place + 1)
            expected[[k, place]] = expected[[place, k]]
            expected[k + 1 :, k] /= expected[k, k]
            for i in range(k + 1, rows):
                here = expected[i, k + 1 : end]
                here[:] = fma64(np.full_like(here, -expected[i, k]), expected[k, k + 1 : end], here)
        if end < columns:
            square = expected[start:end, start:end]
            expected[start:end, end:] = solved(square, expected[start:end, end:], unit=True)
            if end < rows:
                left, right = (
                    torch.from_numpy(x.copy()) for x in (expected[end:, start:end], expected[start:end, end:])
                )
                expected[end:, end:] -= reference(left, right).numpy()
    return expected, pivots


# Fourier transforms of arrays (2, rows, n) of real and imaginary parts.


def times_roots(x, w, fma):
    w = np.stack([w.real, w.imag]).astype(x.dtype)
    w = np.broadcast_to(w[:, None], x.shape)
    return np.stack([fma(x[0], w[0], -(x[1] * w[1])), fma(x[0], w[1], x[1] * w[0])])


def turned(x):
    return np.stack([x[1], -x[0]])


def small(parts, fma):
    """The sums of a radix."""
    r = len(parts)
    if r == 2:
        return [parts[0] + parts[1], parts[0] - parts[1]]
    if r == 4:
        even, odd = small(parts[::2], fma), small(parts[1::2], fma)
        return [even[0] + odd[0], even[1] + turned(odd[1]), even[0] - odd[0], even[1] - turned(odd[1])]
    found, w = [parts[0]] * r, roots(r).numpy()
    for j in range(1, (r + 1) // 2):
        found[0] = found[0] + (parts[j] + parts[r - j])
    full = lambda number: np.full_like(parts[0], number)  # noqa: E731
    for k in range(1, (r + 1) // 2):
        a, b = parts[0], None
        for j in range(1, (r + 1) // 2):
            root, total, difference = w[j * k % r], parts[j] + parts[r - j], parts[j] - parts[r - j]
            a = fma(total, full(root.real), a)
            b = difference * full(-root.imag) if b is None else fma(difference, full(-root.imag), b)
        found[k], found[r - k] = a + turned(b), a - turned(b)
    return found


def by_passes(x, fma):
    n = x.shape[-1]
    if n == 1:
        return x
    radix = next(r for r in (4, 2, 3, 5, 7, 11, 13) if n % r == 0)
    m = n // radix
    sums = small([x[..., k * m : (k + 1) * m] for k in range(radix)], fma)
    result = np.empty_like(x)
    for k, one in enumerate(sums):
        w = roots(n).numpy()[np.arange(m) * k % n]
        result[..., k::radix] = by_passes(times_roots(one, w, fma) if k and m > 1 else one, fma)
    return result


def fourier(x, fma):
    n = x.shape[-1]
    if n < 256:
        return by_passes(x, fma)
    a = max(d for d in range(1, math.isqrt(n) + 1) if n % d == 0)
    b = n // a
    rows = x.reshape(2, -1, a, b)
    first = by_passes(np.ascontiguousarray(rows.swapaxes(2, 3)).reshape(2, -1, a), fma).reshape(2, -1, b, a)
    w = roots(n).numpy()[np.outer(np.arange(b), np.arange(a))]
    first = times_roots(first.reshape(2, -1, n), w.flatten(), fma).reshape(2, -1, b, a).swapaxes(2, 3)
    last = by_passes(np.ascontiguousarray(first).reshape(2, -1, b), fma).reshape(2, -1, a, b)
    return np.ascontiguousarray(last.swapaxes(2, 3)).reshape(2, -1, n)


def fourier_of_real(x, fma):
    n = x.shape[-1]
    m = n // 2
    z = fourier(np.ascontiguousarray(x.reshape(-1, m, 2).transpose(2, 0, 1)), fma)
    z = np.concatenate([z, z[..., :1]], -1)
    other = z[..., ::-1]
    total, difference = (
        np.stack([z[0] + other[0], z[1] - other[1]]),
        np.stack([z[0] - other[0], z[1] + other[1]]),
    )
    return (total + turned(times_roots(difference, roots(n).numpy()[: m + 1], fma))) * x.dtype.type(0.5)
