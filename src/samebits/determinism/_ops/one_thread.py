"""Torch's kernels on one thread, for `across="threads"`: all that is neither ours nor known to be equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from samebits._native.torch_threads import on_single_thread
from samebits.determinism._dispatcher import Kernel, KernelOverrides, tensors_for_numbers
from samebits.determinism._ops import coverage, replacements
from samebits.determinism._ops.operands import IS_NOT_COVERED
from samebits.determinism._replacement import NotCoveredError, Policy, Replacement
from samebits.determinism.table import _verdicts as verdicts


def _kernels_to_install() -> Iterator[Replacement]:
    if coverage.has_vectors():
        return replacements.with_others(only_covered=False)
    return replacements.without_ours()


def _otherwise(op: str, kernel: Kernel) -> Callable[[NotCoveredError], Kernel]:
    """Returns what follows where our kernel of an op takes no such arguments: torch's, on one thread."""
    serial = on_single_thread(tensors_for_numbers(op, kernel))
    return lambda _call: serial


def _put_rest(overrides: KernelOverrides, ours: Iterable[Replacement]) -> None:
    """Installs one thread in front of kernels that the op table does not know as equal over threads."""
    replaced = frozenset((it.op, it.device) for it in ours)
    for full, key, types in verdicts.cpu_table().serial_kernels():
        if (full, key) not in replaced:
            overrides.put(full, key, partial(_serial, full, types))


def _serial(full: str, types: str, kernel: Kernel) -> Kernel:
    kernel = tensors_for_numbers(full, kernel)
    serial = on_single_thread(kernel)
    is_not_covered = IS_NOT_COVERED.get(types)
    if is_not_covered is None:
        return serial

    def kernel_by_type(*args: Any, **kwargs: Any) -> Any:
        return (serial if is_not_covered(args, kwargs) else kernel)(*args, **kwargs)

    return kernel_by_type


POLICY = Policy(_kernels_to_install, _otherwise, _put_rest)
"""That of `across="threads"`."""
