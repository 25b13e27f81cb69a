"""A replacement: a kernel of ours that the switch puts in front of torch's for one aten overload on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from samebits.determinism._dispatcher import Kernel


@dataclass(frozen=True)
class Replacement:
    """One line of what the switch installs; the op table takes its verdict from here, so that the two cannot part."""

    op: str
    """The overload's full name, as `torch._ops.OpOverload.name()` gives it: `aten::sum.dim_IntList`, `aten::mm`."""
    make: Callable[[Kernel], Kernel]
    """Takes torch's kernel and returns ours, with the same arguments. Torch's kernel keeps the GIL while it runs."""
    reason: str
    """What varies without it, and the rule that ours follows, in one sentence."""
    device: str = "CPU"
    """`CPU` or `CUDA`."""
    only_threads: bool = False
    """Torch's kernel is equal from run to run, but not over thread counts: installed with `thread_invariant` only."""
    serial: bool = False
    """Ours runs the whole op on one thread."""
    verified: str = "CPU"
    """Where it was seen equal: empty for a CUDA formulation that no GPU has run, which is not installed."""


def replacements(
    names: Iterable[str],
    make: Callable[[Kernel], Kernel],
    reason: str,
    *,
    only_threads: bool = False,
    serial: bool = False,
) -> tuple[Replacement, ...]:
    """The same CPU replacement for several overloads, names without `aten::`."""
    return tuple(
        Replacement(f"aten::{name}", make, reason, only_threads=only_threads, serial=serial) for name in names
    )


def always(function: Callable[..., Any]) -> Callable[[Kernel], Kernel]:
    """A `Replacement.make` that needs torch's kernel for nothing."""

    def make(_kernel: Kernel) -> Kernel:
        return function

    return make
