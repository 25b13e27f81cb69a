"""Ops of several operands: powers, angles, sums of products, which compilers may fuse; complex numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from samebits.arithmetic.complex_numbers import COMPLEX
from samebits.arithmetic.elementwise_functions import FUNCTIONS, UNARY, ElementwiseFunction
from samebits.determinism._ops.elementwise import Call, Plan, forms, of_operands
from samebits.determinism._replacement import NotCoveredError, Replacement, or_torchs, replacements

_FUNCTION = "vector code and scalar tail round differently; ours is one sequence of IEEE operations"
_CONTRACTED = (
    "vector code has a fused multiply-add where scalar code rounds the product; ours is one fused "
    "multiply-add"
)
_COMPLEX = (
    "of complex numbers torch's compiler fuses products and sums or not: ours rounds each; of real ones it "
    "is one operation, and torch's kernel stays"
)


_REAL = (float, int)
"""A bool is none: torch has its own rules for it."""


def _is_fraction(value: Any) -> bool:
    """Returns True for a tensor or number that is not an integer or bool."""
    if isinstance(value, Tensor):
        return value.dtype.is_floating_point or value.dtype.is_complex
    return isinstance(value, float | complex)


def _is_complex(value: Any) -> bool:
    return value.is_complex() if isinstance(value, Tensor) else isinstance(value, complex)


def _scaled(sign: int) -> Plan:
    """Returns the plan of add (1) or sub (-1): torch's kernel for two tensors, unless `alpha` is not 1.

    A sum with a number takes ours, since torch's kernel takes tensors only.
    """

    def scaled_sum(self: Any, other: Any, *, alpha: float = 1) -> Call | None:
        real = type(alpha) in _REAL
        if real and type(other) in _REAL and self.dtype.is_floating_point:
            return FUNCTIONS["add_number"], (self,), _as_torch_rounds(self.dtype, sign * alpha, other)
        if real and type(self) in _REAL and other.dtype.is_floating_point:
            return FUNCTIONS["number_add"], (other,), _as_torch_rounds(other.dtype, sign * alpha, self)
        if alpha == 1 or not (_is_fraction(self) or _is_fraction(other)):
            return None
        if _is_complex(self) or _is_complex(other):
            return COMPLEX["add_scaled"], (self, other, sign * alpha), ()
        if isinstance(alpha, complex):
            return None
        if isinstance(self, Tensor) and self.dtype is torch.float32:  # a short type would give way to it
            return FUNCTIONS["add_scaled"], (self, other), (sign * alpha,)
        dtype = torch.result_type(self, other)
        return FUNCTIONS["add_scaled"], (self, other), _as_torch_rounds(dtype, sign * alpha)

    return scaled_sum


def _as_torch_rounds(dtype: torch.dtype, *numbers: float) -> tuple[float, ...]:
    """Returns the numbers of a sum or power: torch rounds them to the result's type if that is short."""
    return numbers if dtype in (torch.float32, torch.float64) else _rounded(dtype, numbers)


@lru_cache(maxsize=256)
def _rounded(dtype: torch.dtype, numbers: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(torch.tensor(number, dtype=dtype).item() for number in numbers)


_difference = _scaled(-1)


def _rsub(self: Any, other: Any, *, alpha: float = 1) -> Call | None:
    return _difference(other, self, alpha=alpha)


def _addcmul(self: Tensor, tensor1: Any, tensor2: Any, *, value: float = 1) -> Call | None:
    operands = self, tensor1, tensor2
    if any(map(_is_complex, operands)):
        return COMPLEX["addcmul"], (*operands, value), ()
    if isinstance(value, complex) or not any(map(_is_fraction, operands)):
        return None
    return (FUNCTIONS["addcmul"], operands, (value,))


def _addcdiv(self: Tensor, tensor1: Any, tensor2: Any, *, value: float = 1) -> Call | None:
    operands = self, tensor1, tensor2
    return (COMPLEX["addcdiv"], (*operands, value), ()) if any(map(_is_complex, operands)) else None


def _mul(self: Any, other: Any) -> Call | None:
    return (COMPLEX["mul"], (self, other), ()) if _is_complex(self) or _is_complex(other) else None


def _div(self: Any, other: Any) -> Call | None:
    return (COMPLEX["div"], (self, other), ()) if _is_complex(self) or _is_complex(other) else None


def _reciprocal(self: Tensor) -> Call | None:
    return (COMPLEX["div"], (1.0, self), ()) if self.is_complex() else None


def _lerp(self: Tensor, end: Tensor, weight: Any) -> Call | None:
    if self.is_complex() and self.dtype == end.dtype:
        return COMPLEX["lerp"], (self, end, weight), ()
    if self.dtype != end.dtype or not self.dtype.is_floating_point or isinstance(weight, complex):
        return None
    if not isinstance(weight, Tensor):
        return (FUNCTIONS["lerp_number"], (self, end), (weight,))
    return None if weight.dtype != self.dtype else (FUNCTIONS["lerp"], (self, end, weight), ())


_POWERS: dict[float, ElementwiseFunction] = {
    2: FUNCTIONS["square"],
    3: FUNCTIONS["cube"],
    0.5: UNARY["sqrt"],
    -0.5: UNARY["rsqrt"],
    -2: FUNCTIONS["reciprocal_square"],
}


def _pow(self: Any, exponent: Any) -> Call | None:
    """Plans all three overloads: a number may stand on either side."""
    if not (_is_fraction(self) or _is_fraction(exponent)):
        return None
    if _is_complex(self) or _is_complex(exponent):
        return _complex_power(self, exponent)
    if not isinstance(exponent, Tensor):
        if not isinstance(exponent, complex) and exponent in _POWERS:
            return (_POWERS[exponent], (self,), ())
        if not isinstance(exponent, complex) and self.is_floating_point():
            return FUNCTIONS["pow_number"], (self,), _as_torch_rounds(self.dtype, exponent)
    if not isinstance(self, Tensor) and not isinstance(self, complex) and exponent.is_floating_point():
        return FUNCTIONS["number_pow"], (exponent,), _as_torch_rounds(exponent.dtype, self)
    return (FUNCTIONS["pow"], (self, exponent), ())


def _complex_power(self: Any, exponent: Any) -> Call | None:
    """Plans the square; torch's kernel fills, or copies, for 0 and 1."""
    if not isinstance(exponent, Tensor) and exponent == 2:
        return COMPLEX["mul"], (self, self), ()
    if not isinstance(exponent, Tensor) and exponent in (0, 1):
        return None
    raise NotCoveredError("aten::pow", "of complex numbers", "Multiply, or use torch.polar and exp")


def _number_pow(self: complex, exponent: Tensor) -> Call | None:
    """Plans the powers of a number: torch's result is contiguous, whatever the layout of the exponents."""
    return _pow(self, exponent.contiguous())


def _polygamma(n: int, self: Tensor) -> Call:
    if n not in (0, 1):
        raise NotCoveredError("aten::polygamma", f"of order {n}", "Orders 0 and 1 are covered")
    return (UNARY["digamma"] if n == 0 else FUNCTIONS["trigamma"], (self,), ())


def _same_types(op: str) -> Plan:
    """Returns the plan of an op without integers."""
    function = FUNCTIONS[op]

    def binary(self: Any, other: Any) -> Call | None:
        return (function, (self, other), ()) if _is_fraction(self) or _is_fraction(other) else None

    return binary


def _replacements() -> Iterator[Replacement]:
    yield from forms(_scaled(1), _CONTRACTED, "add.Tensor", "add_.Tensor", "add.out")
    yield from forms(_difference, _CONTRACTED, "sub.Tensor", "sub_.Tensor", "sub.out")
    yield from forms(_rsub, _CONTRACTED, "rsub.Tensor")
    yield from forms(_addcmul, _CONTRACTED, "addcmul", "addcmul_", "addcmul.out")
    yield from forms(_addcdiv, _COMPLEX, "addcdiv", "addcdiv_", "addcdiv.out")
    yield from forms(_mul, _COMPLEX, "mul.Tensor", "mul_.Tensor", "mul.out")
    yield from forms(_div, _COMPLEX, "div.Tensor", "div_.Tensor", "div.out")
    yield from forms(_reciprocal, _COMPLEX, "reciprocal", "reciprocal_", "reciprocal.out")
    yield from forms(_lerp, _CONTRACTED, "lerp.Scalar", "lerp_.Scalar", "lerp.Scalar_out")
    yield from forms(_lerp, _CONTRACTED, "lerp.Tensor", "lerp_.Tensor", "lerp.Tensor_out")
    yield from forms(_pow, _FUNCTION, "pow.Tensor_Scalar", "pow_.Scalar", "pow.Tensor_Scalar_out")
    yield from forms(_pow, _FUNCTION, "pow.Tensor_Tensor", "pow_.Tensor", "pow.Tensor_Tensor_out")
    yield from forms(_number_pow, _FUNCTION, "pow.Scalar", "", "pow.Scalar_out")
    yield from forms(_polygamma, _FUNCTION, "polygamma", "", "polygamma.out")
    yield from forms(of_operands(FUNCTIONS["atan2"]), _FUNCTION, "atan2", "atan2_", "atan2.out")
    yield from forms(
        of_operands(FUNCTIONS["xlogy"]), _FUNCTION, "xlogy.Tensor", "xlogy_.Tensor", "xlogy.OutTensor"
    )
    yield from forms(
        of_operands(FUNCTIONS["special_xlog1py"]), _FUNCTION, "special_xlog1py", "", "special_xlog1py.out"
    )
    for op in ("fmod", "remainder"):
        yield from forms(_same_types(op), _FUNCTION, f"{op}.Tensor", f"{op}_.Tensor", f"{op}.Tensor_out")
    yield from forms(_same_types("remainder"), _FUNCTION, "remainder.Scalar_Tensor")
    for op in ("hypot", "logaddexp", "logaddexp2"):
        yield from forms(_same_types(op), _FUNCTION, op, f"{op}_", f"{op}.out")


# Size, angle and sign of complex numbers: of their parts, by the functions of real ones.
#
# abs is hypot, angle atan2, polar(r, t) r cos(t) + r sin(t) i, and sgn z / |z| (0 for 0).


def _abs(self: Tensor, *, out: Tensor | None = None) -> Tensor | None:
    return torch.hypot(self.real, self.imag) if self.is_complex() else None


def _angle(self: Tensor, *, out: Tensor | None = None) -> Tensor | None:
    return torch.atan2(self.imag, self.real) if self.is_complex() else None


def _sgn(self: Tensor, *, out: Tensor | None = None) -> Tensor | None:
    if not self.is_complex():
        return None
    size = self.abs()
    return torch.where(size == 0, torch.zeros((), dtype=self.dtype), self / size)


def _sgn_in_place(self: Tensor) -> Tensor | None:
    result = _sgn(self)
    return None if result is None else self.copy_(result)


def _polar(abs: Tensor, angle: Tensor, *, out: Tensor | None = None) -> Tensor | None:  # noqa: A002 (torch's)
    if not abs.is_floating_point() or abs.dtype != angle.dtype:
        return None
    return torch.complex(abs * angle.cos(), abs * angle.sin())


_REASON_OF_PARTS = "torch's vector code has its own functions of complex numbers: ours are of their parts"

_PARTS = (
    *replacements(["abs.out"], or_torchs(_abs), _REASON_OF_PARTS),
    *replacements(["angle", "angle.out"], or_torchs(_angle), _REASON_OF_PARTS),
    *replacements(["sgn", "sgn.out"], or_torchs(_sgn), _REASON_OF_PARTS),
    *replacements(["sgn_"], or_torchs(_sgn_in_place), _REASON_OF_PARTS),
    *replacements(["polar.out"], or_torchs(_polar), _REASON_OF_PARTS),
)


# Fake quantization by channel: torch's kernel, but for zero points that are no integers.
#
# q = round(x (1 / scale)) + zero point, to nearest even, bounded; the result is (q - zero point) scale. With
# a zero point that is no integer the product is added to it before it is rounded, which the compiler may
# fuse.


def _by_channel(self: Tensor, scale: Tensor, zero_point: Tensor, *_bounds: Any) -> None:
    if zero_point.is_floating_point():
        op = "aten::fake_quantize_per_channel_affine_cachemask"
        raise NotCoveredError(
            op, "with zero points of floating point", "Round them: zero_point.round().int()"
        )


_FAKE_QUANTIZE = replacements(
    ["fake_quantize_per_channel_affine_cachemask"],
    or_torchs(_by_channel, ()),
    "torch's kernel for integers, whose operations are not fused; other zero points raise",
)

REPLACEMENTS = (*_replacements(), *_PARTS, *_FAKE_QUANTIZE)
