"""Refusals of `across="machines"`: an op that is not covered raises `UnimplementedError` with the way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

from torch import Tensor

from samebits._inspect.user_call import calling_function, calling_op
from samebits.determinism._dispatcher import Kernel, KernelOverrides, tensors_for_numbers
from samebits.determinism._ops import coverage, replacements
from samebits.determinism._ops.operands import IS_NOT_COVERED, OTHER_MODE
from samebits.determinism._replacement import NotCoveredError, Policy, Replacement
from samebits.determinism._warn_once import warn_once
from samebits.errors import UnimplementedError, UnimplementedWarning


def policy(*, warn: bool) -> Policy:
    """Returns the policy of `across="machines"`: covered kernels, and errors, or warnings, for the rest."""
    kernels_to_install = partial(replacements.with_others, only_covered=True)
    return Policy(kernels_to_install, lambda _op, _kernel: _raising, partial(_put_refusals, warn=warn))


def _raising(call: NotCoveredError) -> NoReturn:
    raise UnimplementedError(_text(call.op, call.what, call.cure)) from None


def _text(op: str, what: str, cure: str | None = None) -> str:
    reason = coverage.refusal_reason(op)
    return (
        f"{calling_op(f'{op} {what}'.strip())} has no kernel with the same bits on every machine "
        f'(enable_op_determinism(across="machines")){reason and ": "}{reason}. {cure or _other_ways(op)}.'
    )


def _other_ways(op: str) -> str:
    name = calling_function() or op.removeprefix("aten::").partition(".")[0]
    return f"`samebits ops {name}` says what is covered; or {OTHER_MODE}"


def _put_refusals(overrides: KernelOverrides, ours: Iterable[Replacement], *, warn: bool) -> None:
    """Installs refusals in front of CPU kernels that are not covered. `ours`: our installed kernels."""
    replaced = frozenset((it.op, it.device) for it in ours)
    for full, key, covered in coverage.refusals(replaced):
        # torch hands out no kernel of oneDNN's own layout, so that a warning could not run it.
        if covered.kind == coverage.DENIED and (not warn or key == "MkldnnCPU"):
            overrides.replace(full, key, _refusal(full))
        else:
            overrides.put(full, key, _make(full, covered, warn=warn))


def _refusal(full: str) -> Kernel:
    def refused(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise UnimplementedError(_text(full, ""))

    return refused


def _make(full: str, covered: coverage.Coverage, *, warn: bool) -> Callable[[Kernel], Kernel]:
    is_refused = IS_NOT_COVERED.get(covered.types, _always)

    def make(kernel: Kernel) -> Kernel:
        kernel = tensors_for_numbers(full, kernel)

        def checked(*args: Any, **kwargs: Any) -> Any:
            if is_refused(args, kwargs):
                what = f"of {', '.join(_kinds(args, kwargs))}" if covered.types else ""
                if not warn:
                    raise UnimplementedError(_text(full, what))
                warn_once(
                    f"machine {full}",
                    lambda: f"{_text(full, what)} It runs all the same (on_unimplemented='warn').",
                    UnimplementedWarning,
                )
            return kernel(*args, **kwargs)

        return checked

    return make


def _always(_args: tuple[Any, ...], _kwargs: dict[str, Any]) -> bool:
    return True


def _kinds(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Returns the types of the tensors among the arguments."""
    found = (
        value
        for each in (*args, *kwargs.values())
        for value in (each if isinstance(each, (list, tuple)) else (each,))
    )
    return sorted({str(value.dtype).removeprefix("torch.") for value in found if isinstance(value, Tensor)})
