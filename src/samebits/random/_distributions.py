"""Words to uniform and normal numbers, as kernels over rows: row k of `out` is drawn from key k.

The mapping from words is that of torch's CUDA kernels. Uniform numbers have the same bits. Normal numbers are the
same Box-Muller transform of the same uniforms, but evaluated here by IEEE operations only, where CUDA uses its fast
approximations of log, sin and cos (relative error about 2**-21).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from samebits.kernels import inlined, kernel
from samebits.random._elementary import box_muller_32, box_muller_64, fma
from samebits.random._philox import block

_1, _32 = np.uint64(1), np.uint64(32)
_2_32 = 2.0**-32


@inlined
def _float32_in_0_1(word: Any) -> Any:
    """The float32 next to (float32(word) + 1/2) / 2**32, which is in (0, 1]; the product is exact."""
    return np.float32(np.uint32(word)) * np.float32(2.0**-32) + np.float32(2.0**-33)


@inlined
def _float64_in_0_1(high: Any, low: Any) -> Any:
    return fma(np.float64(high), _2_32, fma(np.float64(low) * _2_32, _2_32, 0.5 * _2_32 * _2_32))


@inlined
def _uniform_32(seed: Any, offset: Any, parameters: Any, out: Any, at: Any) -> None:
    low, span, mask = parameters
    scale = np.float32(1.0) / np.float32(mask + _1)
    w0, w1, w2, w3 = block(seed, offset)
    out[at] = fma(np.float32(np.int32(w0 & mask)) * scale, span, low)
    out[at + 1] = fma(np.float32(np.int32(w1 & mask)) * scale, span, low)
    out[at + 2] = fma(np.float32(np.int32(w2 & mask)) * scale, span, low)
    out[at + 3] = fma(np.float32(np.int32(w3 & mask)) * scale, span, low)


@inlined
def _uniform_64(seed: Any, offset: Any, parameters: Any, out: Any, at: Any) -> None:
    low, span, mask = parameters
    w0, w1, w2, w3 = block(seed, offset)
    out[at] = fma(np.float64(((w0 << _32) | w1) & mask) * 2.0**-53, span, low)
    out[at + 1] = fma(np.float64(((w2 << _32) | w3) & mask) * 2.0**-53, span, low)


@inlined
def _normal_32(seed: Any, offset: Any, parameters: Any, out: Any, at: Any) -> None:
    mean, std, _ = parameters
    w0, w1, w2, w3 = block(seed, offset)
    x0, x1 = box_muller_32(_float32_in_0_1(w0), _float32_in_0_1(w1))
    x2, x3 = box_muller_32(_float32_in_0_1(w2), _float32_in_0_1(w3))
    out[at] = fma(x0, std, mean)
    out[at + 1] = fma(x1, std, mean)
    out[at + 2] = fma(x2, std, mean)
    out[at + 3] = fma(x3, std, mean)


@inlined
def _normal_64(seed: Any, offset: Any, parameters: Any, out: Any, at: Any) -> None:
    mean, std, _ = parameters
    w0, w1, w2, w3 = block(seed, offset)
    x0, x1 = box_muller_64(_float64_in_0_1(w0, w1), _float64_in_0_1(w2, w3))
    out[at] = fma(x0, std, mean)
    out[at + 1] = fma(x1, std, mean)


def _rows(draw: Any, dtype: Any, per_block: int) -> Any:
    """A kernel that fills every row of `out` by `draw`, which writes the numbers of one block."""

    def fill(keys: Any, location: Any, scale: Any, mask: Any, out: Any) -> None:
        parameters = (location, scale, mask)
        last = np.empty(per_block, dtype)
        blocks, rest = out.shape[1] // per_block, out.shape[1] % per_block
        for k in range(out.shape[0]):
            seed, offset, row = keys[k, 0], keys[k, 1], out[k]
            for i in range(blocks):
                draw(seed, offset + np.uint64(i), parameters, row, per_block * i)
            if rest > 0:
                draw(seed, offset + np.uint64(blocks), parameters, last, 0)
                for j in range(rest):
                    row[per_block * blocks + j] = last[j]

    name = np.dtype(dtype).name
    fill.__qualname__ = f"fill{draw.py_func.__name__}"
    return kernel(f"void(uint64[:, ::1], {name}, {name}, uint64, {name}[:, ::1])")(fill)


uniform_float32 = _rows(_uniform_32, np.float32, 4)
uniform_float64 = _rows(_uniform_64, np.float64, 2)
normal_float32 = _rows(_normal_32, np.float32, 4)
normal_float64 = _rows(_normal_64, np.float64, 2)
