"""Our elementwise functions by name, each with a kernel for every type that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from samebits._native.formula import Formula
from samebits.arithmetic.elementwise_kernel import FILLED as FILLED
from samebits.arithmetic.elementwise_kernel import ElementwiseKernel
from samebits.arithmetic.functions import (
    activations,
    draw_gradients,
    error_functions,
    exponential,
    gamma_functions,
    hyperbolic,
    inverse_trigonometry,
    logarithm,
    narrow_activations,
    optimizer_steps,
    powers,
    trigonometry,
)

_NAMES = {
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.float64: "float64",
}


class ElementwiseFunction:
    """A function of elements; `kernels` has the types that it takes.

    Of the formulas, `wide` computes float32 and shorter types in float64, `narrow` in float32; `short` is for
    bfloat16 and float16 only, and computes in float32; `double` is for float64, which has the formula of
    float32 where there is none.
    """

    __slots__ = ("inputs", "kernels", "name", "numbers", "outputs")

    def __init__(
        self,
        name: str,
        wide: Callable[..., Any] | None = None,
        *,
        narrow: Callable[..., Any] | None = None,
        short: Callable[..., Any] | None = None,
        double: Callable[..., Any] | None = None,
        inputs: int = 1,
        outputs: int = 1,
        numbers: int = 0,
    ) -> None:
        self.name, self.inputs, self.outputs, self.numbers = name, inputs, outputs, numbers
        in_float32 = short or narrow
        formulas = {
            torch.float32: (wide or narrow, wide is not None),
            torch.bfloat16: (in_float32 or wide, in_float32 is None),
            torch.float16: (in_float32 or wide, in_float32 is None),
            torch.float64: (double or narrow or wide, False),
        }
        self.kernels = {
            dtype: ElementwiseKernel(
                formula,
                _NAMES[dtype],
                name,
                inputs=inputs,
                outputs=outputs,
                numbers=numbers,
                wide=is_wide,
                registers=2 if is_wide or dtype is torch.float64 else 8,
            )
            for dtype, (formula, is_wide) in formulas.items()
            if formula is not None
        }


_FAMILIES = (
    activations,
    draw_gradients,
    error_functions,
    exponential,
    gamma_functions,
    hyperbolic,
    inverse_trigonometry,
    logarithm,
    narrow_activations,
    optimizer_steps,
    powers,
    trigonometry,
)
_FORMULAS = {
    name: one for family in _FAMILIES for name, one in vars(family).items() if isinstance(one, Formula)
}
_OF_OTHER_NAME = {
    "lerp_number": "lerp",
    "lgamma": "log_gamma",
    "log_sigmoid": "log_sigmoid_with_exponential",
    "pow_number": "pow",
    "special_entr": "entr",
    "special_xlog1py": "xlog1py",
}
"""Functions whose formulas have another name."""


def _function(name: str, numbers: int = 0) -> ElementwiseFunction:
    """Returns the function of the formulas of that name: `..._narrow`, else `_wide`; `_short`; `_double`."""
    stem = _OF_OTHER_NAME.get(name, name)
    narrow, wide, short, double = (
        _FORMULAS.get(f"{stem}_{form}") for form in ("narrow", "wide", "short", "double")
    )
    operands = inspect.signature((narrow or _FORMULAS[f"{stem}_wide"]).define).parameters
    return ElementwiseFunction(
        name,
        None if narrow else wide,
        narrow=narrow,
        short=short,
        double=double,
        inputs=len(operands) - numbers,
        outputs=2 if name == "log_sigmoid" else 1,
        numbers=numbers,
    )


_UNARY = """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt erf erfc erfinv sin cos tan sinc asin acos atan sinh cosh
    tanh asinh acosh atanh sigmoid silu mish lgamma digamma special_entr
"""
UNARY = {name: _function(name) for name in _UNARY.split()}
"""Functions of one number, by the name of their op."""
_OTHERS = """
    trigamma gelu gelu_tanh log_sigmoid logit glu sigmoid_backward tanh_backward silu_backward mish_backward
    gelu_backward gelu_tanh_backward log_sigmoid_backward logit_backward glu_gate_backward pow square cube
    reciprocal_square atan2 hypot logaddexp logaddexp2 xlogy special_xlog1py hardswish_backward
    standard_gamma_grad dirichlet_grad fmod remainder lerp binary_cross_entropy
"""
_WITH_NUMBERS = {
    1: "pow_number number_pow add_scaled softshrink addcmul addcdiv lerp_number",
    2: """
        softplus softplus_backward logit_clamped logit_backward_clamped add_number number_add
        smooth_l1_backward huber_backward
    """,
    3: "elu elu_backward elu_backward_of_result",
}
"""Functions that take Python numbers behind their operands, by how many."""

FUNCTIONS = {
    **UNARY,
    **{
        name: _function(name, count)
        for count, names in {0: _OTHERS, **_WITH_NUMBERS}.items()
        for name in names.split()
    },
}
"""All of them; those that an op chooses by its arguments have names of ours."""
