"""Refusals of `across="machines"`: an op that is not covered raises `UnimplementedError` with the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor

from samebits._inspect.user_call import calling_function, calling_op
from samebits.determinism._dispatcher import Kernel, KernelOverrides
from samebits.determinism._kernels.pointwise import tensors_for_numbers
from samebits.determinism._machine_invariant import coverage
from samebits.determinism._replacement import Replacement
from samebits.determinism._warn_once import warn_once
from samebits.errors import UnimplementedError, UnimplementedWarning


def unsupported(op: str, what: str, cure: str | None = None) -> NoReturn:
    """Raises the error for arguments (`what`: "of complex64") that our kernel of an op does not take."""
    raise UnimplementedError(_text(op, what, cure))


def _text(op: str, what: str, cure: str | None = None) -> str:
    reason = coverage.refusal_reason(op)
    return (
        f"{calling_op(f'{op} {what}'.strip())} has no kernel with the same bits on every machine "
        f'(enable_op_determinism(across="machines")){reason and ": "}{reason}. {cure or _other_ways(op)}.'
    )


def _other_ways(op: str) -> str:
    name = calling_function() or op.removeprefix("aten::").partition(".")[0]
    return (
        f"`samebits ops {name}` says what is covered; or run this part inside `with samebits.enable_op_determinism("
        'across="threads"):`, where the same bits are promised on one model of CPU'
    )


def refuse(overrides: KernelOverrides, ours: Iterable[Replacement], *, warn: bool) -> None:
    """Installs a refusal in front of every kernel of the CPU that is not covered. `ours`: the kernels of ours that are installed."""
    replaced = frozenset((it.op, it.device) for it in ours)
    for full, key, covered in coverage.refusals(replaced):
        # torch hands out no kernel of oneDNN's own layout, so that a warning could not run it.
        if covered.kind == coverage.DENIED and (not warn or key == "MkldnnCPU"):
            overrides.replace(full, key, _refusal(full))
        else:
            overrides.put(full, key, _make(full, covered, warn=warn))


def _refusal(full: str) -> Kernel:
    def refused(*_args: Any, **_kwargs: Any) -> NoReturn:
        unsupported(full, "")

    return refused


def _make(full: str, covered: coverage.Coverage, *, warn: bool) -> Callable[[Kernel], Kernel]:
    is_refused = {"": _always, coverage.REAL: has_complex, coverage.INTEGERS: _has_fractions}[covered.types]

    def make(kernel: Kernel) -> Kernel:
        kernel = tensors_for_numbers(full.removeprefix("aten::"), kernel)

        def checked(*args: Any, **kwargs: Any) -> Any:
            if is_refused(args, kwargs):
                what = f"of {', '.join(_kinds(args, kwargs))}" if covered.types else ""
                if not warn:
                    unsupported(full, what)
                text = lambda: f"{_text(full, what)} It runs all the same (on_unimplemented='warn')."  # noqa: E731
                warn_once(f"machine {full}", text, UnimplementedWarning)
            return kernel(*args, **kwargs)

        return checked

    return make


def _always(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool:
    return True


def has_complex(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns True if an operand is complex; the loop stays bare, since mul passes here."""
    for value in args:
        if (isinstance(value, Tensor) and value.is_complex()) or isinstance(value, complex):
            return True
    return bool(kwargs) and any(isinstance(value, Tensor) and value.is_complex() for value in kwargs.values())


def _has_fractions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns True if an argument is of floating point or complex, or asks for a result that is."""
    return any(_is_fraction(value) for value in (*args, *kwargs.values()))


def _is_fraction(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_is_fraction, value))
    dtype = value.dtype if isinstance(value, Tensor) else value
    return isinstance(value, (float, complex)) or (
        isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex)
    )


def _kinds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Returns the types of the tensors among the arguments."""
    found = (
        value
        for each in (*args, *kwargs.values())
        for value in (each if isinstance(each, (list, tuple)) else (each,))
    )
    return sorted({str(value.dtype).removeprefix("torch.") for value in found if isinstance(value, Tensor)})
