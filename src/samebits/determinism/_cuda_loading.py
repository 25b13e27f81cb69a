"""The formulations for CUDA: their modules are loaded when a CUDA tensor first meets the switch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache, partial
from typing import Any

from samebits import determinism
from samebits.determinism import _verified_on_gpu as verified_on_gpu
from samebits.determinism._dispatcher import Kernel
from samebits.determinism._replacement import Replacement


def installable(entries: Iterable[verified_on_gpu.GpuVerification] | None = None) -> tuple[Replacement, ...]:
    """Returns the overrides that a GPU has verified (default: the data file's); a call loads the rest."""
    ops = dict.fromkeys(entry.op for entry in (verified_on_gpu.read() if entries is None else entries))
    return tuple(
        Replacement(op, partial(_load_at_first_call, op), "", device="CUDA", verified="CUDA") for op in ops
    )


@cache
def all_formulations() -> Mapping[str, Replacement]:
    """Returns every formulation by its overload's full name, verified or not: loads them (0.1 s)."""
    return {one.op: one for one in determinism._cuda_decompositions.REPLACEMENTS}


def computes(name: str, ops: Iterable[str]) -> bool:
    """Returns True if `name` is one of `ops`, or its out form is, which has the kernel of `median.dim`."""
    return not {name, f"{name}.values", f"{name}_values"}.isdisjoint(ops)


def _load_at_first_call(op: str, kernel: Kernel) -> Kernel:
    made: list[Kernel] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not made:
            made.append(all_formulations()[op].make(kernel))
        return made[0](*args, **kwargs)

    return call
