"""All replacements with one arithmetic, for threads and machines: for the switch and the op table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from samebits._native.torch_threads import on_single_thread
from samebits.determinism import _all_replacements as without_mode
from samebits.determinism._dispatcher import Kernel, tensors_for_numbers
from samebits.determinism._ops import (
    activations,
    arithmetic,
    attention,
    batch_norm,
    convolution,
    coverage,
    creation,
    embedding_bag,
    fourier,
    fused_optimizers,
    grid_sample,
    group_norm,
    layer_norm,
    linear_algebra,
    losses,
    products,
    recurrent,
    softmax,
    sparse,
    sums,
    vector_norms,
)
from samebits.determinism._replacement import Replacement

ELEMENTWISE: tuple[Replacement, ...] = (
    *activations.REPLACEMENTS,
    *arithmetic.REPLACEMENTS,
    *fused_optimizers.REPLACEMENTS,
    *losses.ELEMENTWISE,
)
_ROOMS = (
    activations, arithmetic, attention, batch_norm, convolution, creation, embedding_bag, fourier,
    fused_optimizers, grid_sample, group_norm, layer_norm, linear_algebra, losses, products, recurrent,
    softmax, sparse, sums, vector_norms,
)  # fmt: skip
REPLACEMENTS: tuple[Replacement, ...] = tuple(it for room in _ROOMS for it in room.REPLACEMENTS)
"""Those whose bits are the same on every machine."""


def with_others(*, only_covered: bool) -> Iterator[Replacement]:
    """Yields ours, and those of other ops that stay; `only_covered`: with the same bits on every machine."""
    yield from REPLACEMENTS
    ours = {it.op for it in REPLACEMENTS if it.device == "CPU"}
    for it in without_mode.REPLACEMENTS:
        if it.op not in ours and (not only_covered or coverage.stays(it.op)):
            yield it


def without_ours() -> Iterator[Replacement]:
    """Yields torch's kernels on one thread in place of ours, for a CPU on which ours do not run."""
    kept = {it.op: it for it in without_mode.REPLACEMENTS}
    ours = [it for it in REPLACEMENTS if it.device != "AutogradCPU"]  # else torch composes it of other ops
    for it in ours:
        make = kept[it.op].make if it.op in kept else _same
        yield replace(it, make=partial(_serial, it.op, make), serial=True)
    yield from (it for op, it in kept.items() if op not in {it.op for it in ours})


def _same(kernel: Kernel) -> Kernel:
    return kernel


def _serial(op: str, make: Callable[[Kernel], Kernel], kernel: Kernel) -> Kernel:
    return on_single_thread(make(tensors_for_numbers(op, kernel)))
