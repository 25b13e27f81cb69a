"""The machines of the promise: x86-64 with AVX2 and FMA, whose vector kernels torch then uses, too."""

from __future__ import annotations

import platform

import torch

from samebits.errors import ConflictError

CAPABILITIES = ("AVX2", "AVX512")
"""Of `torch.backends.cpu.get_cpu_capability()`: the plain C++ kernels of a lesser one draw other normal numbers."""


def has_vectors() -> bool:
    """Returns True if the CPU, and torch's settings, have what our kernels and torch's are the same with."""
    is_x86 = platform.machine() in {"x86_64", "AMD64"}
    return not is_x86 or torch.backends.cpu.get_cpu_capability() in CAPABILITIES


def check() -> None:
    """Raises `ConflictError` on a machine, or with settings, for which the mode promises nothing."""
    if not has_vectors():
        found = torch.backends.cpu.get_cpu_capability()
        raise ConflictError(
            f'enable_op_determinism(across="machines"): torch uses its kernels for {found!r} here, and the same bits are '
            f"promised for x86-64 with AVX2 and FMA. Unset ATEN_CPU_CAPABILITY, or use a CPU that has them."
        )
