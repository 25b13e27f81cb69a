"""Elementwise overloads whose kernel of torch's stays: each output is what IEEE 754 says of a sequence that no compiler changes.

Measured with AVX2 and AVX-512 kernels at lengths 1 to 100, offsets, steps, transposed and expanded operands
(tests/determinism/machine/test_exact_elementwise.py). A compiler may contract a product and a sum, so that an op with both
is here only if its product is exact. Bits of a NaN are left out: hardware takes the sign and payload of one operand or the
other. bfloat16 and float16 are converted to float32 and rounded once; complex numbers are never meant.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Types of floating point for which the kernels stay; integers and bool stay always."""


class ExactOps(NamedTuple):
    """Overloads (functional forms without `aten::`; in-place and out forms follow) with one reason."""

    reason: str
    ops: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...] = REAL


EXACT_ELEMENTWISE = (
    ExactOps(
        "one IEEE operation, rounded once",
        (
            "mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar", "reciprocal", "add.Scalar", "sub.Scalar", "rsub.Scalar",
            "deg2rad", "rad2deg", "ldexp.Tensor", "nextafter",
        ),
    ),
    ExactOps(
        "a bit is changed or moved",
        ("neg", "abs", "copysign.Tensor", "copysign.Scalar", "signbit"),
    ),
    ExactOps(
        "a comparison or a selection",
        (
            "relu", "clamp", "clamp.Tensor", "clamp_min", "clamp_min.Tensor", "clamp_max", "clamp_max.Tensor", "maximum",
            "minimum", "fmax", "fmin", "where.self", "masked_fill.Scalar", "masked_fill.Tensor", "eq.Tensor", "eq.Scalar",
            "ne.Tensor", "ne.Scalar", "lt.Tensor", "lt.Scalar", "le.Tensor", "le.Scalar", "gt.Tensor", "gt.Scalar",
            "ge.Tensor", "ge.Scalar", "sign", "sgn", "heaviside", "isnan", "isinf", "isposinf", "isneginf", "nan_to_num",
            "logical_not", "logical_and", "logical_or", "logical_xor", "hardtanh", "hardtanh_backward", "threshold",
            "threshold_backward", "hardshrink", "hardshrink_backward", "softshrink_backward",
        ),
    ),
    ExactOps("rounding to an integer is exact", ("floor", "ceil", "round", "trunc", "frac")),
    ExactOps(
        "a selection of an operand or of one product",
        (
            "leaky_relu", "leaky_relu_backward", "_prelu_kernel", "_prelu_kernel_backward", "native_dropout_backward",
        ),
    ),
    ExactOps(
        "a sum, a bound and products or a quotient, in one order; no product is added to anything",
        ("hardsigmoid", "hardsigmoid_backward", "hardswish"),
    ),
    ExactOps(
        "a quotient of a product, added: a quotient cannot be contracted",
        ("addcdiv",),
    ),
    ExactOps(
        "a quotient, corrected by exact comparisons and one sum",
        ("div.Tensor_mode", "div.Scalar_mode", "floor_divide"),
    ),
    ExactOps(
        "differences and products, none of which is added: the sums and means of losses are ops of their own",
        ("mse_loss", "mse_loss_backward", "binary_cross_entropy_backward"),
    ),
    ExactOps(
        "the only product that is added is one with 1/2, which is exact",
        ("smooth_l1_loss", "huber_loss"),
    ),
)  # fmt: skip
"""What may stay. Not here, since ours replaces them: add and sub of tensors (their alpha), addcmul, lerp, fmod, remainder,
softshrink (the sign of its zeros), hardswish_backward (of NaN), and every function."""

SINGLE_PRODUCTS = ("exp", "log", "sqrt", "erf", "sin", "cos", "tan", "sinh", "cosh", "asin", "acos", "atan")
"""Functions whose derivative torch composes of other ops, so that it has no kernel of its own."""
