"""Overrides of single aten kernels: other ops cost nothing, autograd and every thread see them, and they can be undone.

`torch.library.Library("aten", "IMPL")` puts a kernel in front, `torch.library.get_kernel` keeps the original.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

Kernel = Callable[..., Any]

_KEYSETS = {name: torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in ("CPU", "CUDA")}


class Overrides:
    """A set of overridden aten kernels that is installed and removed as one."""

    def __init__(self) -> None:
        self._library: torch.library.Library | None = torch.library.Library("aten", "IMPL")

    def put(self, op: torch._ops.OpOverload, device: str, make: Callable[[Kernel], Kernel]) -> None:
        """Replaces the kernel of `op` on `device` ("CPU" or "CUDA") by `make(original)`."""
        assert self._library is not None
        original = functools.partial(torch.library.get_kernel(op, device).call_boxed, _KEYSETS[device])
        name = op.name().removeprefix("aten::")
        with (
            warnings.catch_warnings()
        ):  # torch warns, once for all ops, that a kernel is overridden: it is meant
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            self._library.impl(name, make(original), device, allow_override=True)

    def remove(self) -> None:
        """Puts the original kernels back; also from inside one of the overrides."""
        if self._library is not None:
            self._library._destroy()  # what torch's own users of IMPL libraries call; there is no public name
            self._library = None


def has_kernel(op: torch._ops.OpOverload, key: str) -> bool:
    """Whether a kernel of `op` is registered for the dispatch key of that name."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), key)


def aten_ops() -> Iterator[torch._ops.OpOverload]:
    """Every aten overload of this torch. (`dir(torch.ops.aten)` lists only those already looked up.)"""
    for full in torch._C._dispatch_get_all_op_names():
        if full.startswith("aten::"):
            name, _, overload = full.removeprefix("aten::").partition(".")
            try:
                yield getattr(getattr(torch.ops.aten, name), overload or "default")
            except (AttributeError, RuntimeError):  # TorchScript-only names
                continue
