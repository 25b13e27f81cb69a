"""A replacement: a kernel of ours that the switch installs in front of torch's for one aten overload on one device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from samebits.determinism._dispatcher import Kernel


@dataclass(frozen=True)
class Replacement:
    """One line of the switch's list; the op table takes its verdict from here, so that the two cannot differ."""

    op: str
    """The overload's full name, as `torch._ops.OpOverload.name()` returns it: `aten::sum.dim_IntList`, `aten::mm`."""
    make: Callable[[Kernel], Kernel]
    """Takes torch's kernel and returns ours, with the same arguments. Torch's kernel keeps the GIL while it runs."""
    reason: str
    """In one sentence: the variation without it, and the rule of our kernel."""
    device: str = "CPU"
    """`CPU` or `CUDA`; `AutogradCPU` for an op that torch composes of others: ours has a gradient of its own, and is the CPU's in inference mode."""
    only_threads: bool = False
    """Torch's kernel is equal from run to run, but not over thread counts: not installed for equal runs alone."""
    serial: bool = False
    """Ours runs the whole op on one thread."""
    verified: str = "CPU"
    """The device on which it was equal: empty for a CUDA formulation that no GPU has run, which is not installed."""


def replacements(
    names: Iterable[str],
    make: Callable[[Kernel], Kernel],
    reason: str,
    *,
    only_threads: bool = False,
    serial: bool = False,
) -> tuple[Replacement, ...]:
    """Returns the same CPU replacement for several overloads, names without `aten::`."""
    return tuple(
        Replacement(f"aten::{name}", make, reason, only_threads=only_threads, serial=serial) for name in names
    )


def always(function: Callable[..., Any]) -> Callable[[Kernel], Kernel]:
    """Returns a `Replacement.make` that does not use torch's kernel."""

    def make(_kernel: Kernel) -> Kernel:
        return function

    return make


class NotCoveredError(Exception):
    """Arguments that our kernel of an op does not take; it raises before it writes, and the mode decides what follows.

    Attributes:
        op: the overload's full name.
        what: the arguments, as "of complex64".
        cure: what to do where nothing else computes them; None: the general advice.
    """

    def __init__(self, op: str, what: str, cure: str | None = None) -> None:
        self.op, self.what, self.cure = op, what, cure
