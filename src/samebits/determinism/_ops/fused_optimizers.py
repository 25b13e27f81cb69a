"""Fused optimizers on the CPU: one kernel a tensor, with the bits of the single-tensor and foreach implementations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any

from torch import Tensor

from samebits.arithmetic.elementwise_functions import ElementwiseFunction
from samebits.arithmetic.functions.optimizer_steps import adagrad_step, adam_step, sgd_step
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._ops.elementwise import addresses_of
from samebits.determinism._replacement import NotCoveredError, Replacement

_REASON = "vector code contracts products and sums, and scalar code computes them in float64; ours is one sequence of operations"


@lru_cache(maxsize=256)
def power(base: float, exponent: int) -> float:
    """Returns base^exponent for 0 <= base <= 1, from integers of 128 bits, so that no libm has a part in it.

    The error before the one rounding is below 2^-100 of 1.
    """
    if base == 1.0:  # else its integer would not fit below
        return 1.0
    result, factor = 1 << 128, int(base * 2.0**64 * 2.0**64)
    while exponent:
        if exponent & 1:
            result = (result * factor) >> 128
        factor = (factor * factor) >> 128
        exponent >>= 1
    return result / (1 << 128)


@cache
def _adam(*, decoupled: bool, decay: bool, amsgrad: bool) -> ElementwiseFunction:
    name = f"adam{'w' * decoupled}{'_decay' * decay}{'_amsgrad' * amsgrad}"
    formula = adam_step(decoupled=decoupled, decay=decay, amsgrad=amsgrad)
    return ElementwiseFunction(name, narrow=formula, inputs=4 + amsgrad, outputs=3 + amsgrad, numbers=8)


@cache
def _sgd(*, decay: bool, momentum: bool, first: bool, nesterov: bool) -> ElementwiseFunction:
    name = f"sgd{'_decay' * decay}{'_momentum' * momentum}{'_first' * first}{'_nesterov' * nesterov}"
    formula = sgd_step(decay=decay, momentum=momentum, first=first, nesterov=nesterov)
    return ElementwiseFunction(name, narrow=formula, inputs=2 + momentum, outputs=1 + momentum, numbers=5)


@cache
def _adagrad(*, decay: bool) -> ElementwiseFunction:
    return ElementwiseFunction(
        f"adagrad{'_decay' * decay}", narrow=adagrad_step(decay=decay), inputs=3, outputs=2, numbers=4
    )


def _check(
    op: str, function: ElementwiseFunction, params: Sequence[Tensor], *lists: Sequence[Tensor]
) -> None:
    """Raises the error for parameters, gradients and states that no kernel takes."""
    for param, *others in zip(params, *lists, strict=True):
        if param.dtype not in function.kernels:
            kind = str(param.dtype).removeprefix("torch.")
            raise NotCoveredError(op, f"of {kind}", "Keep the parameters in float32")
        for other in others:
            if other.dtype is not param.dtype or other.shape != param.shape:
                what = "of parameters, gradients and states of several types or shapes"
                raise NotCoveredError(op, what, "Use foreach=True")


def _update(
    function: ElementwiseFunction, grad: Tensor, updated: Sequence[Tensor], numbers: Sequence[float]
) -> None:
    """Writes one step to the tensors of one parameter, the first of `updated`."""
    first, *others = updated
    run = function.kernels[first.dtype]
    found = addresses_of(first, (first, grad, *others))
    if found is not None:
        run(first.numel(), *found, *(each.data_ptr() for each in updated), *numbers)
        return
    dense = [each.contiguous() for each in (first, grad, *others)]
    results = [dense[0], *dense[2:]]
    addresses = [value for each in dense for value in (each.data_ptr(), 1)]
    run(first.numel(), *addresses, *(each.data_ptr() for each in results), *numbers)
    for each, result in zip(updated, results, strict=True):
        if result is not each:
            each.copy_(result)


def _unscale(grads: Sequence[Tensor], grad_scale: Tensor | None) -> None:
    """Takes the scale out of the gradients, as torch's kernel does."""
    if grad_scale is not None:
        for grad in grads:
            grad.div_(grad_scale)


def _is_infinite(found_inf: Tensor | None) -> bool:
    """Returns True if a gradient was infinite: the step is skipped."""
    return found_inf is not None and found_inf.item() == 1


def _adam_kernel(op: str, decoupled: bool, kernel: Kernel) -> Kernel:
    def fused(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        exp_avgs: Sequence[Tensor],
        exp_avg_sqs: Sequence[Tensor],
        max_exp_avg_sqs: Sequence[Tensor],
        state_steps: Sequence[Tensor],
        *,
        lr: Any,
        beta1: float,
        beta2: float,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        states = (exp_avgs, exp_avg_sqs, *((max_exp_avg_sqs,) if amsgrad else ()))
        if _is_infinite(found_inf):
            return
        lr = lr.item() if isinstance(lr, Tensor) else lr
        decay = weight_decay != 0
        function = _adam(decoupled=decoupled and decay, decay=decay, amsgrad=amsgrad)
        _check(op, function, params, grads, *states)
        _unscale(grads, grad_scale)
        factor = 1 - lr * weight_decay if decoupled else weight_decay
        for param, grad, step, *state in zip(params, grads, state_steps, *states, strict=True):
            count = int(step.item())
            step_size = lr / (1 - power(beta1, count))
            root = math.sqrt(1 - power(beta2, count))
            sign = -1.0 if maximize else 1.0
            numbers = (sign, factor, 1 - beta1, beta2, 1 - beta2, root, eps, -step_size)
            _update(function, grad, (param, *state), numbers)

    return fused


def _sgd_kernel(op: str, kernel: Kernel) -> Kernel:
    def fused(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        buffers: Sequence[Tensor],
        *,
        weight_decay: float,
        momentum: float,
        lr: Any,
        dampening: float,
        nesterov: bool,
        maximize: bool,
        is_first_step: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        if _is_infinite(found_inf):
            return
        lr = lr.item() if isinstance(lr, Tensor) else lr
        moving = momentum != 0
        function = _sgd(
            decay=weight_decay != 0,
            momentum=moving,
            first=is_first_step and moving,
            nesterov=nesterov and moving,
        )
        _check(op, function, params, grads, *((buffers,) if moving else ()))
        _unscale(grads, grad_scale)
        numbers = (-1.0 if maximize else 1.0, weight_decay, momentum, 1 - dampening, -lr)
        for param, grad, *state in zip(params, grads, *((buffers,) if moving else ()), strict=True):
            _update(function, grad, (param, *state), numbers)

    return fused


def _adagrad_kernel(op: str, kernel: Kernel) -> Kernel:
    def fused(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        state_sums: Sequence[Tensor],
        state_steps: Sequence[Tensor],
        *,
        lr: Any,
        lr_decay: float,
        weight_decay: float,
        eps: float,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:
        if _is_infinite(found_inf):
            return
        lr = lr.item() if isinstance(lr, Tensor) else lr
        function = _adagrad(decay=weight_decay != 0)
        _check(op, function, params, grads, state_sums)
        _unscale(grads, grad_scale)
        for param, grad, total, step in zip(params, grads, state_sums, state_steps, strict=True):
            rate = lr / (1 + (step.item() - 1) * lr_decay)
            numbers = (-1.0 if maximize else 1.0, weight_decay, eps, -rate)
            _update(function, grad, (param, total), numbers)

    return fused


def _replacements() -> Iterator[Replacement]:
    makers: dict[str, Callable[..., Kernel]] = {
        "_fused_adam_": partial(_adam_kernel, "aten::_fused_adam_", False),
        "_fused_adamw_": partial(_adam_kernel, "aten::_fused_adamw_", True),
        "_fused_sgd_": partial(_sgd_kernel, "aten::_fused_sgd_"),
        "_fused_adagrad_": partial(_adagrad_kernel, "aten::_fused_adagrad_"),
    }
    for name, make in makers.items():
        for variant in ("", ".tensor_lr"):
            yield Replacement(f"aten::{name}{variant}", make, _REASON)


REPLACEMENTS = tuple(_replacements())
