"""The forms of an elementwise op: functional, in place, and with `out`, each from one function of the op's arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from samebits.determinism._arithmetic.elementwise_functions import ElementwiseFunction
from samebits.determinism._dispatcher import Kernel, kernels, overload, tensors_for_numbers
from samebits.determinism._machine_invariant.elementwise.evaluation import (
    Call,
    TorchRaisesError,
    evaluate,
    evaluate_into,
)
from samebits.determinism._machine_invariant.operands import has_complex
from samebits.determinism._replacement import NotCoveredError, Replacement

Plan = Callable[..., Call | None]
"""Takes the arguments of an op, without `out`, and says what to evaluate; None: torch's kernel is right."""


def unary_forms(function: ElementwiseFunction, reason: str, op: str) -> Iterator[Replacement]:
    """Yields the forms of a function of one tensor."""

    def plan(self: Tensor) -> Call:
        return function, (self,), ()

    for it in forms(plan, reason, op, f"{op}_", f"{op}.out"):
        yield replace(it, make=partial(_unary, function)) if it.op == f"aten::{op}" else it


def _unary(function: ElementwiseFunction, kernel: Kernel) -> Kernel:
    kernel_of, empty_like = function.kernels.get, torch.empty_like

    def elementwise(self: Tensor) -> Tensor:
        run = kernel_of(self.dtype)
        if run is None or not self.is_contiguous():
            return evaluate((function, (self,), ()))
        result = empty_like(self)
        run(self.numel(), self.data_ptr(), 1, result.data_ptr())
        return result

    return elementwise


_BY_PARTS = ("add", "sub", "rsub")
"""A sum of complex numbers is one of their real and one of their imaginary parts; with a factor, the formula refuses them."""


def _of_real_numbers(name: str, kernel: Kernel) -> Kernel:
    """Returns torch's kernel for what no formula takes; complex numbers, of which the compiler may contract products, raise."""
    if name.partition(".")[0].rstrip("_") in _BY_PARTS:
        return kernel

    def of_real_numbers(*args: Any, **kwargs: Any) -> Any:
        if has_complex(args, kwargs):
            raise NotCoveredError(f"aten::{name}", "of complex numbers")
        return kernel(*args, **kwargs)

    return of_real_numbers


def _functional(name: str, plan: Plan, kernel: Kernel) -> Kernel:
    torchs = _of_real_numbers(name, tensors_for_numbers(f"aten::{name}", kernel))

    def elementwise(*args: Any, **kwargs: Any) -> Tensor:
        call = plan(*args, **kwargs)
        if call is None:
            return torchs(*args, **kwargs)
        try:
            return evaluate(call)
        except TorchRaisesError:
            return torchs(*args, **kwargs)

    return elementwise


def _in_place(name: str, plan: Plan, kernel: Kernel) -> Kernel:
    torchs = _of_real_numbers(name, tensors_for_numbers(f"aten::{name}", kernel))

    def elementwise_(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        call = plan(self, *args, **kwargs)
        if call is None:
            return torchs(self, *args, **kwargs)
        try:
            return evaluate_into(call, self, in_place=True)
        except TorchRaisesError:
            return torchs(self, *args, **kwargs)

    return elementwise_


def _out(name: str, plan: Plan, kernel: Kernel) -> Kernel:
    torchs = _of_real_numbers(name, tensors_for_numbers(f"aten::{name}", kernel))
    out_name = next(a.name for a in overload(f"aten::{name}")._schema.arguments if a.is_out)

    def elementwise_out(*args: Any, **kwargs: Any) -> Tensor:
        out = kwargs.pop(out_name)
        call = plan(*args, **kwargs)
        if call is None:
            return torchs(*args, **kwargs, **{out_name: out})
        if any(isinstance(a, Tensor) and a.dtype != out.dtype for a in args):  # torch casts, or raises
            few = [a.flatten()[:0] if isinstance(a, Tensor) and a.dim() else a for a in args]
            torchs(*few, **kwargs, **{out_name: out.new_empty(0)})
        try:
            return evaluate_into(call, out, in_place=False)
        except TorchRaisesError:
            return torchs(*args, **kwargs, **{out_name: out})

    return elementwise_out


def forms(
    plan: Plan, reason: str, functional: str, in_place: str = "", out: str = ""
) -> Iterator[Replacement]:
    """Yields a replacement for each form of an op that torch has a kernel for; names without `aten::`."""
    for name, form in ((functional, _functional), (in_place, _in_place), (out, _out)):
        if name and f"aten::{name}" in _known():
            yield Replacement(f"aten::{name}", partial(form, name, plan), reason)


@cache
def _known() -> frozenset[str]:
    return frozenset(kernels("CPU"))
