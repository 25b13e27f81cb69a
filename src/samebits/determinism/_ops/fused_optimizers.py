"""Fused optimizers on the CPU: one kernel a tensor, with the bits of the other implementations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

from torch import Tensor

from samebits._native.kernel_threads import variants
from samebits.arithmetic.elementwise_functions import ElementwiseFunction
from samebits.arithmetic.functions import adagrad_step, adam_step, sgd_step
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._ops.elementwise import addresses_of
from samebits.determinism._replacement import NotCoveredError, Replacement, always, replacements

_REASON = (
    "vector code contracts products and sums, and scalar code computes them in float64; ours is one sequence "
    "of operations"
)

_BOTH = (False, True)


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


@variants(decoupled=_BOTH, decay=_BOTH, amsgrad=_BOTH)
def _adam(*, decoupled: bool, decay: bool, amsgrad: bool) -> ElementwiseFunction:
    name = f"adam{'w' * decoupled}{'_decay' * decay}{'_amsgrad' * amsgrad}"
    formula = adam_step(decoupled=decoupled, decay=decay, amsgrad=amsgrad)
    return ElementwiseFunction(name, narrow=formula, inputs=4 + amsgrad, outputs=3 + amsgrad, numbers=8)


def _is_asked(*, momentum: bool, first: bool, nesterov: bool, **_: bool) -> bool:
    return momentum or not (first or nesterov)


@variants(decay=_BOTH, momentum=_BOTH, first=_BOTH, nesterov=_BOTH, only=_is_asked)
def _sgd(*, decay: bool, momentum: bool, first: bool, nesterov: bool) -> ElementwiseFunction:
    name = f"sgd{'_decay' * decay}{'_momentum' * momentum}{'_first' * first}{'_nesterov' * nesterov}"
    formula = sgd_step(decay=decay, momentum=momentum, first=first, nesterov=nesterov)
    return ElementwiseFunction(name, narrow=formula, inputs=2 + momentum, outputs=1 + momentum, numbers=5)


@variants(decay=_BOTH)
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


class _FusedStep(NamedTuple):
    """One step of an optimizer, the same for all of its parameters but for the numbers."""

    function: ElementwiseFunction
    states: tuple[Sequence[Tensor], ...]
    numbers: Callable[[int], tuple[float, ...]]
    """Those of the parameter of that index."""


def _fused(op: str, step_of: Callable[..., _FusedStep]) -> Kernel:
    """Returns the kernel of an optimizer; `step_of` gets its lists and settings."""

    def fused(
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        *lists: Sequence[Tensor],
        lr: Any,
        maximize: bool,
        grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
        **settings: Any,
    ) -> None:
        if found_inf is not None and found_inf.item() == 1:  # a gradient was infinite: no step
            return
        rate, sign = (lr.item() if isinstance(lr, Tensor) else lr), -1.0 if maximize else 1.0
        step = step_of(*lists, lr=rate, sign=sign, **settings)
        _check(op, step.function, params, grads, *step.states)
        if grad_scale is not None:
            for grad in grads:
                grad.div_(grad_scale)  # as torch's kernel does
        for index, (param, grad, *state) in enumerate(zip(params, grads, *step.states, strict=True)):
            _update(step.function, grad, (param, *state), step.numbers(index))

    return fused


def _adam_of(
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: float,
    sign: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    decoupled: bool,
) -> _FusedStep:
    decay = weight_decay != 0
    factor = 1 - lr * weight_decay if decoupled else weight_decay

    def numbers(index: int) -> tuple[float, ...]:
        count = int(state_steps[index].item())
        step_size = lr / (1 - power(beta1, count))
        root = math.sqrt(1 - power(beta2, count))
        return sign, factor, 1 - beta1, beta2, 1 - beta2, root, eps, -step_size

    function = _adam(decoupled=decoupled and decay, decay=decay, amsgrad=amsgrad)
    return _FusedStep(function, (exp_avgs, exp_avg_sqs, *((max_exp_avg_sqs,) if amsgrad else ())), numbers)


def _sgd_of(
    buffers: Sequence[Tensor],
    *,
    lr: float,
    sign: float,
    weight_decay: float,
    momentum: float,
    dampening: float,
    nesterov: bool,
    is_first_step: bool,
) -> _FusedStep:
    moving = momentum != 0
    function = _sgd(
        decay=weight_decay != 0, momentum=moving, first=is_first_step and moving, nesterov=nesterov and moving
    )
    numbers = (sign, weight_decay, momentum, 1 - dampening, -lr)
    return _FusedStep(function, (buffers,) if moving else (), lambda _: numbers)


def _adagrad_of(
    state_sums: Sequence[Tensor],
    state_steps: Sequence[Tensor],
    *,
    lr: float,
    sign: float,
    lr_decay: float,
    weight_decay: float,
    eps: float,
) -> _FusedStep:
    def numbers(index: int) -> tuple[float, ...]:
        rate = lr / (1 + (state_steps[index].item() - 1) * lr_decay)
        return sign, weight_decay, eps, -rate

    return _FusedStep(_adagrad(decay=weight_decay != 0), (state_sums,), numbers)


def _replacements() -> Iterator[Replacement]:
    for name, step_of in (
        ("_fused_adam_", partial(_adam_of, decoupled=False)),
        ("_fused_adamw_", partial(_adam_of, decoupled=True)),
        ("_fused_sgd_", _sgd_of),
        ("_fused_adagrad_", _adagrad_of),
    ):
        make = always(_fused(f"aten::{name}", step_of))
        yield from replacements((name, f"{name}.tensor_lr"), make, _REASON)


REPLACEMENTS = tuple(_replacements())
