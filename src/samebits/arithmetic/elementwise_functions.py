"""Our elementwise functions by name, each with a kernel for every type that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
    bfloat16 and float16 only, and computes in float32; `double` is for float64.
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
            torch.float64: (double or narrow, False),
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


def _function(
    name: str, wide: Callable[..., Any] | None = None, **options: Any
) -> tuple[str, ElementwiseFunction]:
    return name, ElementwiseFunction(name, wide, **options)


UNARY = dict(
    (
        _function("exp", narrow=exponential.exp_narrow, double=exponential.exp_double),
        _function("exp2", narrow=exponential.exp2_narrow, double=exponential.exp2_double),
        _function("expm1", exponential.expm1_wide, double=exponential.expm1_double),
        _function("log", narrow=logarithm.log_narrow, short=logarithm.log_short, double=logarithm.log_double),
        _function("log2", logarithm.log2_wide, short=logarithm.log2_short, double=logarithm.log2_double),
        _function("log10", logarithm.log10_wide, short=logarithm.log10_short, double=logarithm.log10_double),
        _function("log1p", logarithm.log1p_wide, double=logarithm.log1p_double),
        _function("sqrt", narrow=powers.sqrt_narrow),
        _function("rsqrt", narrow=powers.rsqrt_narrow, double=powers.rsqrt_double),
        _function(
            "erf",
            narrow=error_functions.erf_narrow,
            double=error_functions.erf_double,
        ),
        _function("erfc", error_functions.erfc_wide, double=error_functions.erfc_double),
        _function("erfinv", error_functions.erfinv_wide, double=error_functions.erfinv_double),
        _function("sin", narrow=trigonometry.sin_narrow, double=trigonometry.sin_double),
        _function("cos", narrow=trigonometry.cos_narrow, double=trigonometry.cos_double),
        _function("tan", trigonometry.tan_wide, double=trigonometry.tan_double),
        _function("sinc", trigonometry.sinc_wide, double=trigonometry.sinc_double),
        _function("asin", inverse_trigonometry.asin_wide, double=inverse_trigonometry.asin_double),
        _function("acos", inverse_trigonometry.acos_wide, double=inverse_trigonometry.acos_double),
        _function("atan", inverse_trigonometry.atan_wide, double=inverse_trigonometry.atan_double),
        _function("sinh", hyperbolic.sinh_wide, double=hyperbolic.sinh_double),
        _function("cosh", hyperbolic.cosh_wide, double=hyperbolic.cosh_double),
        _function("tanh", narrow=hyperbolic.tanh_narrow, double=hyperbolic.tanh_double),
        _function("asinh", hyperbolic.asinh_wide, double=hyperbolic.asinh_double),
        _function("acosh", hyperbolic.acosh_wide, double=hyperbolic.acosh_double),
        _function("atanh", hyperbolic.atanh_wide, double=hyperbolic.atanh_double),
        _function("sigmoid", narrow=narrow_activations.sigmoid_narrow, double=activations.sigmoid_double),
        _function("silu", narrow=narrow_activations.silu_narrow, double=activations.silu_double),
        _function("mish", activations.mish_wide, double=activations.mish_double),
        _function("lgamma", gamma_functions.log_gamma_wide, double=gamma_functions.log_gamma_double),
        _function("digamma", gamma_functions.digamma_wide, double=gamma_functions.digamma_double),
        _function("special_entr", powers.entr_wide, double=powers.entr_double),
    )
)
"""Functions of one number, by the name of their op."""

FUNCTIONS = {
    **UNARY,
    **dict(
        (
            _function("trigamma", gamma_functions.trigamma_wide, double=gamma_functions.trigamma_double),
            _function(
                "gelu",
                narrow=narrow_activations.gelu_narrow,
                short=narrow_activations.gelu_short,
                double=activations.gelu_double,
            ),
            _function("gelu_tanh", activations.gelu_tanh_wide, double=activations.gelu_tanh_double),
            _function(
                "softplus",
                narrow=narrow_activations.softplus_narrow,
                double=activations.softplus_double,
                numbers=2,
            ),
            _function("elu", activations.elu_wide, double=activations.elu_double, numbers=3),
            _function(
                "log_sigmoid",
                narrow=narrow_activations.log_sigmoid_with_exponential_narrow,
                double=activations.log_sigmoid_with_exponential_double,
                outputs=2,
            ),
            _function(
                "logit",
                activations.logit_wide,
                short=activations.logit_short,
                double=activations.logit_double,
            ),
            _function(
                "logit_clamped",
                activations.logit_clamped_wide,
                double=activations.logit_clamped_double,
                numbers=2,
            ),
            _function("glu", narrow=narrow_activations.glu_narrow, double=activations.glu_double, inputs=2),
            _function(
                "sigmoid_backward",
                activations.sigmoid_backward_wide,
                short=activations.sigmoid_backward_wide,
                double=activations.sigmoid_backward_wide,
                inputs=2,
            ),
            _function("tanh_backward", narrow=narrow_activations.tanh_backward_narrow, inputs=2),
            _function(
                "silu_backward",
                narrow=narrow_activations.silu_backward_narrow,
                double=activations.silu_backward_double,
                inputs=2,
            ),
            _function(
                "mish_backward",
                activations.mish_backward_wide,
                double=activations.mish_backward_double,
                inputs=2,
            ),
            _function(
                "gelu_backward",
                narrow=narrow_activations.gelu_backward_narrow,
                short=narrow_activations.gelu_backward_short,
                double=activations.gelu_backward_double,
                inputs=2,
            ),
            _function(
                "gelu_tanh_backward",
                activations.gelu_tanh_backward_wide,
                double=activations.gelu_tanh_backward_double,
                inputs=2,
            ),
            _function(
                "softplus_backward",
                narrow=narrow_activations.softplus_backward_narrow,
                double=activations.softplus_backward_double,
                inputs=2,
                numbers=2,
            ),
            _function(
                "elu_backward",
                activations.elu_backward_wide,
                double=activations.elu_backward_double,
                inputs=2,
                numbers=3,
            ),
            _function(
                "elu_backward_of_result",
                activations.elu_backward_of_result_wide,
                double=activations.elu_backward_of_result_wide,
                inputs=2,
                numbers=3,
            ),
            _function(
                "log_sigmoid_backward",
                narrow=narrow_activations.log_sigmoid_backward_narrow,
                double=activations.log_sigmoid_backward_double,
                inputs=2,
            ),
            _function(
                "logit_backward",
                activations.logit_backward_wide,
                double=activations.logit_backward_wide,
                inputs=2,
            ),
            _function(
                "logit_backward_clamped",
                activations.logit_backward_clamped_wide,
                double=activations.logit_backward_clamped_wide,
                inputs=2,
                numbers=2,
            ),
            _function(
                "glu_gate_backward",
                narrow=narrow_activations.glu_gate_backward_narrow,
                double=activations.glu_gate_backward_double,
                inputs=3,
            ),
            _function("pow", powers.pow_wide, double=powers.pow_double, inputs=2),
            _function("pow_number", powers.pow_wide, double=powers.pow_double, numbers=1),
            _function("number_pow", powers.number_pow_wide, double=powers.number_pow_double, numbers=1),
            _function("square", narrow=powers.square_narrow),
            _function("cube", powers.cube_wide, double=powers.cube_wide),
            _function(
                "reciprocal_square", powers.reciprocal_square_wide, double=powers.reciprocal_square_wide
            ),
            _function(
                "atan2", inverse_trigonometry.atan2_wide, double=inverse_trigonometry.atan2_double, inputs=2
            ),
            _function("hypot", powers.hypot_wide, double=powers.hypot_double, inputs=2),
            _function("logaddexp", powers.logaddexp_wide, double=powers.logaddexp_double, inputs=2),
            _function("logaddexp2", powers.logaddexp2_wide, double=powers.logaddexp2_double, inputs=2),
            _function("xlogy", powers.xlogy_wide, double=powers.xlogy_double, inputs=2),
            _function("special_xlog1py", powers.xlog1py_wide, double=powers.xlog1py_double, inputs=2),
            _function("add_scaled", narrow=optimizer_steps.add_scaled_narrow, inputs=2, numbers=1),
            _function("add_number", narrow=optimizer_steps.add_number_narrow, numbers=2),
            _function("number_add", narrow=optimizer_steps.number_add_narrow, numbers=2),
            _function("softshrink", narrow=optimizer_steps.softshrink_narrow, numbers=1),
            _function("hardswish_backward", narrow=optimizer_steps.hardswish_backward_narrow, inputs=2),
            _function(
                "standard_gamma_grad",
                draw_gradients.gamma_gradient,
                double=draw_gradients.gamma_gradient,
                inputs=2,
            ),
            _function(
                "dirichlet_grad",
                draw_gradients.dirichlet_gradient,
                double=draw_gradients.dirichlet_gradient,
                inputs=3,
            ),
            _function("fmod", powers.fmod_wide, double=powers.fmod_double, inputs=2),
            _function("remainder", powers.remainder_wide, double=powers.remainder_double, inputs=2),
            _function("addcmul", narrow=optimizer_steps.addcmul_narrow, inputs=3, numbers=1),
            _function("addcdiv", narrow=optimizer_steps.addcdiv_narrow, inputs=3, numbers=1),
            _function("lerp_number", narrow=optimizer_steps.lerp_narrow, inputs=2, numbers=1),
            _function("lerp", narrow=optimizer_steps.lerp_narrow, inputs=3),
            _function(
                "binary_cross_entropy",
                activations.binary_cross_entropy_wide,
                double=activations.binary_cross_entropy_double,
                inputs=2,
            ),
            _function(
                "smooth_l1_backward",
                activations.smooth_l1_backward_wide,
                double=activations.smooth_l1_backward_wide,
                inputs=3,
                numbers=2,
            ),
            _function(
                "huber_backward",
                activations.huber_backward_wide,
                double=activations.huber_backward_wide,
                inputs=3,
                numbers=2,
            ),
        )
    ),
}
"""All of them; those that an op chooses by its arguments have names of ours."""
