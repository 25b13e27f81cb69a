"""A replacement: our kernel that the switch installs in front of torch's for an overload on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from samebits.determinism._dispatcher import Kernel, KernelOverrides
from samebits.determinism._kernels.out_argument import into


@dataclass(frozen=True)
class Replacement:
    """One line of the switch's list; the op table takes its verdict from here: the two cannot differ."""

    op: str
    """The overload's full name, as `torch._ops.OpOverload.name()`: `aten::sum.dim_IntList`, `aten::mm`."""
    make: Callable[[Kernel], Kernel]
    """Takes torch's kernel and returns ours, with the same arguments. Torch's keeps the GIL while it runs."""
    reason: str
    """In one sentence: the variation without it, and the rule of our kernel."""
    device: str = "CPU"
    """`CPU` or `CUDA`; `AutogradCPU` for an op that torch composes of others.

    That has a gradient of its own, and is the CPU's in inference mode.
    """
    only_threads: bool = False
    """Torch's kernel repeats from run to run, not over thread counts: not installed for equal runs alone."""
    serial: bool = False
    """Ours runs the whole op on one thread."""
    verified: str = "CPU"
    """The device on which it was equal; empty for a CUDA formulation that no GPU ran: it is not installed."""


def replacements(
    names: Iterable[str], make: Callable[[Kernel], Kernel], reason: str, device: str = "CPU", **more: Any
) -> tuple[Replacement, ...]:
    """Returns the same replacement for several overloads, names without `aten::`; `more`: of its fields."""
    return tuple(Replacement(f"aten::{name}", make, reason, device, **more) for name in names)


def always(function: Callable[..., Any]) -> Callable[[Kernel], Kernel]:
    """Returns a `Replacement.make` that does not use torch's kernel."""

    def make(_kernel: Kernel) -> Kernel:
        return function

    return make


def or_torchs(compute: Callable[..., Any], out: tuple[str, ...] = ("out",)) -> Callable[[Kernel], Kernel]:
    """Returns a `Replacement.make`: `compute` with the op's arguments, or torch's kernel where that is None.

    `compute` gets the arguments named in `out`, too, if the overload has them; its results are written there.
    """

    def make(kernel: Kernel) -> Kernel:
        def op(*args: Any, **kwargs: Any) -> Any:
            result = compute(*args, **kwargs)
            if result is None:
                return kernel(*args, **kwargs)
            targets = [kwargs[name] for name in out if name in kwargs]
            if not targets:
                return result
            return into(targets[0], result) if len(out) == 1 else tuple(map(into, targets, result))

        return op

    return make


class NotCoveredError(Exception):
    """Arguments that our kernel of an op does not take, raised before it writes; the mode says what follows.

    Attributes:
        op: the overload's full name.
        what: the arguments, as "of complex64".
        cure: what to do where nothing else computes them; None: the general advice.
    """

    def __init__(self, op: str, what: str, cure: str | None = None) -> None:
        self.op, self.what, self.cure = op, what, cure


@dataclass(frozen=True)
class Policy:
    """A mode of the switch: its kernels, and the treatment of calls that none of them computes."""

    kernels_to_install: Callable[[], Iterable[Replacement]]
    otherwise: Callable[[str, Kernel], Callable[[NotCoveredError], Kernel] | None]
    """Takes an overload and torch's kernel; what it returns raises, or gives the kernel for a call that ours
    does not cover."""
    put_rest: Callable[[KernelOverrides, Iterable[Replacement]], None]
    """Takes our installed kernels, and puts checks or other kernels in front of the rest of torch's."""
