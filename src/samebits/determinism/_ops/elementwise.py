"""Elementwise functions of tensors: type promotion, broadcasting, layout of the result, existing results.

The kernel gets operands of one dense layout as they are, others as copies in the layout of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PROMOTION
from torch._prims_common import compute_elementwise_output_strides, elementwise_dtypes

from samebits._strides import is_dense
from samebits.arithmetic.complex_numbers import COMPLEX
from samebits.arithmetic.elementwise_functions import FILLED, ElementwiseFunction
from samebits.determinism._dispatcher import Kernel, kernels, overload, tensors_for_numbers
from samebits.determinism._kernels.out_argument import resize
from samebits.determinism._ops.operands import has_complex
from samebits.determinism._replacement import NotCoveredError, Replacement

Call = tuple[ElementwiseFunction, tuple[Any, ...], tuple[float, ...]]
"""One evaluation: a function, operands (tensors, numbers where torch allows them), and Python numbers."""


class TorchRaisesError(Exception):
    """The arguments are invalid: torch's kernel has the message."""


def evaluate(call: Call) -> Tensor:
    """Returns a new tensor."""
    function, operands, numbers = call
    first = operands[0]
    addresses = addresses_of(first, operands)
    if addresses is not None:
        run = function.kernels.get(first.dtype)
        if run is not None:
            result = torch.empty_like(first)
            run(result.numel(), *addresses, result.data_ptr(), *numbers)
            return result
    return evaluate_all(call)[0]


def evaluate_into(call: Call, result: Tensor, *, in_place: bool) -> Tensor:
    """Writes to a tensor: to the first operand, or to `out`, which is resized as torch does."""
    function, operands, numbers = call
    addresses = addresses_of(result, operands)
    if addresses is not None:
        run, start, length = function.kernels.get(result.dtype), result.data_ptr(), result.nbytes
        if run is not None and all(at == start or abs(at - start) >= length for at in addresses if at != 1):
            run(result.numel(), *addresses, result.data_ptr(), *numbers)
            return result
    shape, dtype = _shape(operands), _dtype(operands)
    if not torch.can_cast(dtype, result.dtype) or (in_place and shape != result.shape):
        raise TorchRaisesError
    if torch._debug_has_internal_overlap(result) == 1 or any(_overlaps(result, each) for each in operands):
        raise TorchRaisesError
    computed = evaluate_all(call)[0]
    if result.shape != shape:
        resize(result, shape)
        if result.stride() != computed.stride():
            result.as_strided_(shape, computed.stride())
    return result.copy_(computed)


def addresses_of(like: Any, operands: Sequence[Any]) -> list[int] | None:
    """Returns the addresses and steps of operands that have one type, shape and dense layout, else None."""
    if not isinstance(like, Tensor):
        return None
    strides = None if like.is_contiguous() else like.stride()
    if strides is not None and not is_dense(like):
        return None
    found: list[int] = []
    dtype, shape = like.dtype, like.shape
    for operand in operands:
        if operand is not like and not (
            isinstance(operand, Tensor)
            and operand.dtype is dtype
            and operand.shape == shape
            and (operand.is_contiguous() if strides is None else operand.stride() == strides)
        ):
            return None
        found += (operand.data_ptr(), 1)
    return found


def evaluate_all(call: Call) -> list[Tensor]:
    """Returns a new tensor for each output of the function."""
    function, operands, numbers = call
    dtype, shape = _dtype(operands), _shape(operands)
    run = function.kernels.get(dtype) or (
        COMPLEX[function.name].kernels.get(dtype) if function.name in COMPLEX else None
    )
    if run is None:
        kind = str(dtype).removeprefix("torch.")
        cure = (
            "Compute with real and imaginary parts" if dtype.is_complex else "Convert its operands to float32"
        )
        raise NotCoveredError(f"aten::{function.name}", f"of {kind}", cure)
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    strides = _strides(tensors, shape)
    results = [torch.empty_strided(shape, strides, dtype=dtype) for _ in range(function.outputs)]
    addresses: list[int] = []
    kept = []
    for operand in operands:
        dense, step = _dense(operand, dtype, shape, strides)
        kept.append(dense)
        addresses += (dense.data_ptr(), step)
    addresses += [result.data_ptr() for result in results]
    run(results[0].numel(), *addresses, *numbers)
    return results


def _strides(tensors: Sequence[Tensor], shape: torch.Size) -> tuple[int, ...]:
    large = [each for each in tensors if each.dim()]
    if len(large) == 1 and is_dense(large[0]):
        return large[0].stride()
    return _layout(tensors, shape)


def _dense(
    operand: Any, dtype: torch.dtype, shape: torch.Size, strides: tuple[int, ...]
) -> tuple[Tensor, int]:
    """Returns an operand in the layout of the result, and its step: 0 for one value, which fills a vector."""
    if not isinstance(operand, Tensor):
        return torch.full((FILLED,), operand, dtype=dtype), 0
    if (
        operand.shape == shape
        and operand.stride() == strides
        and operand.dtype == dtype
        and is_dense(operand)
    ):
        return operand, 1
    if operand.numel() == 1:
        return operand.to(dtype).reshape(1).expand(FILLED).contiguous(), 0
    return torch.empty_strided(shape, strides, dtype=dtype).copy_(operand), 1


def _shape(operands: Sequence[Any]) -> torch.Size:
    shapes = [operand.shape for operand in operands if isinstance(operand, Tensor)]
    large = [shape for shape in shapes if shape] or shapes
    if all(shape == large[0] for shape in large):
        return large[0]
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise TorchRaisesError from None


def _dtype(operands: Sequence[Any]) -> torch.dtype:
    """Returns the type of the computation; integers become the default type."""
    dtypes = {each.dtype for each in operands if isinstance(each, Tensor)}
    if len(dtypes) == 1 and not any(isinstance(each, complex) for each in operands):
        (dtype,) = dtypes
        if dtype.is_floating_point:
            return dtype
    return elementwise_dtypes(*operands, type_promotion_kind=PROMOTION.INT_TO_FLOAT)[1]


def _overlaps(result: Tensor, operand: Any) -> bool:
    """Returns True if a dense operand is partly in the memory of the dense result: torch's kernel raises."""
    if not isinstance(operand, Tensor) or operand is result:
        return False
    start, other = result.data_ptr(), operand.data_ptr()
    if other >= start + result.nbytes or start >= other + operand.nbytes:
        return False
    same = other == start and operand.stride() == result.stride() and operand.shape == result.shape
    return not same and is_dense(operand) and is_dense(result)


def _layout(args: Sequence[Tensor], shape: torch.Size) -> tuple[int, ...]:
    """Returns the strides that torch gives to the result of an elementwise op."""
    return compute_elementwise_output_strides(*(a.expand(shape) for a in args))


# The forms of an elementwise op: functional, in place, and with `out`, each from one function of the op's
# arguments.


Plan = Callable[..., Call | None]
"""Takes the arguments of an op, without `out`, and says what to evaluate; None: torch's kernel is right."""


def of_operands(function: ElementwiseFunction) -> Plan:
    """Returns the plan of an op that is one function of all its arguments."""

    def plan(*operands: Any) -> Call:
        return function, operands, ()

    return plan


def unary_forms(function: ElementwiseFunction, reason: str, op: str) -> Iterator[Replacement]:
    """Yields the forms of a function of one tensor."""
    for it in forms(of_operands(function), reason, op, f"{op}_", f"{op}.out"):
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


_PLANNED = ("add", "sub", "rsub", "mul", "div", "addcmul", "addcdiv", "reciprocal", "pow")
"""Their plans have a formula for complex numbers, but for sums and powers in which no product is rounded."""


def _of_real_numbers(name: str, kernel: Kernel) -> Kernel:
    """Returns torch's kernel for what no formula takes; complex numbers raise: products may be fused."""
    if name.partition(".")[0].rstrip("_") in _PLANNED:
        return kernel

    def of_real_numbers(*args: Any, **kwargs: Any) -> Any:
        if has_complex(args, kwargs):
            raise NotCoveredError(f"aten::{name}", "of complex numbers")
        return kernel(*args, **kwargs)

    return of_real_numbers


def _functional(name: str, plan: Plan, kernel: Kernel, *, in_place: bool = False) -> Kernel:
    torchs = _of_real_numbers(name, tensors_for_numbers(f"aten::{name}", kernel))

    def elementwise(*args: Any, **kwargs: Any) -> Tensor:
        call = plan(*args, **kwargs)
        if call is None:
            return torchs(*args, **kwargs)
        try:
            return evaluate_into(call, args[0], in_place=True) if in_place else evaluate(call)
        except TorchRaisesError:
            return torchs(*args, **kwargs)

    return elementwise


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
    in_place_form = partial(_functional, in_place=True)
    for name, form in ((functional, _functional), (in_place, in_place_form), (out, _out)):
        if name and f"aten::{name}" in _known():
            yield Replacement(f"aten::{name}", partial(form, name, plan), reason)


@cache
def _known() -> frozenset[str]:
    return frozenset(kernels("CPU"))
