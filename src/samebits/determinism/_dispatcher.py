"""Overrides of single kernels: other ops cost nothing, autograd and all threads see them; can be undone.

`torch.library.Library("aten", "IMPL")` puts a kernel in front; `torch.library.get_kernel` has the original.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Kernel = Callable[..., Any]

_NOTE = "Warning only once for all operators"
"""torch's warning, once per process, that a kernel is overridden; here it is intended."""


class KernelOverrides:
    """A set of overridden kernels that is installed and removed as one."""

    def __init__(self) -> None:
        self._libraries: dict[str, torch.library.Library] = {}

    def put(self, name: str, key: str, make: Callable[[Kernel], Kernel]) -> None:
        """Replaces the kernel of an overload (`aten::sum.dim_IntList`) for a dispatch key ("CPU").

        `make` gets the original and returns ours. Setting up costs about 25 us.
        """
        keyset = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
        original = functools.partial(torch.library.get_kernel(name, key).call_boxed, keyset)
        self.replace(name, key, make(original))

    def replace(self, name: str, key: str, kernel: Kernel) -> None:
        """Replaces a kernel without keeping the original."""
        namespace, _, rest = name.partition("::")
        if namespace not in self._libraries:
            self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
        _silence_note()
        # without allow_override torch 2.11 raises
        _register(self._libraries[namespace], rest, kernel, key, allow_override=True)

    def remove(self) -> None:
        """Restores the original kernels; also from inside one of the overrides."""
        for library in self._libraries.values():
            library._destroy()  # torch's own users of IMPL libraries call it; there is no public name
        self._libraries.clear()


_register = torch.library.Library.impl
"""Taken at import: the switch watches others' registrations (`_guards/custom_ops.py`), not its own."""


@functools.cache
def _silence_note() -> None:
    """Makes torch give its warning now, unseen: a warnings filter per override would cost more than it."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_NOTE)
        _register(library, "linalg_qr", _placeholder, "CPU", allow_override=True)
    library._destroy()


def _placeholder(*_: Any) -> None:
    """Replaces a kernel for an instant; never called."""


def has_kernel(name: str, key: str) -> bool:
    """Returns True if this torch has the op of that full name, with a kernel for that dispatch key."""
    return torch._C._dispatch_has_kernel(name) and torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def kernels(key: str) -> list[str]:
    """Returns full names of all overloads with a kernel for that key (1.5 ms; a query for each takes 25)."""
    return torch._C._dispatch_get_registrations_for_dispatch_key(key)


def overload(full: str) -> torch._ops.OpOverload:
    """Returns the overload of a full name (`aten::sum.dim_IntList`); AttributeError if torch has none."""
    namespace, _, rest = full.partition("::")
    name, _, variant = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), variant or "default")


def tensors_for_numbers(name: str, kernel: Kernel) -> Kernel:
    """Returns the kernel for callers that give a number where the schema says Tensor, as `x % 2.0` does.

    Torch holds such a number as a tensor that does not take part in type promotion and hands it to Python as
    the number, which its own kernel then refuses.
    """
    places = _tensor_places(name)
    if len(places) < 2:
        return kernel

    def with_tensors(*args: Any, **kwargs: Any) -> Any:
        for place in places:
            if not isinstance(args[place], Tensor):
                break
        else:
            return kernel(*args, **kwargs)
        like = next(args[i] for i in places if isinstance(args[i], Tensor))
        given = list(args)
        for place in places:
            number = args[place]
            if not isinstance(number, Tensor):
                written = repr(number)  # tells 0.0 from -0.0, and 1 from True
                default = torch.get_default_dtype()
                given[place] = _as_tensor(number, written, like.dtype, default, like.dim() == 0)
        return kernel(*given, **kwargs)

    return with_tensors


@functools.cache
def _tensor_places(name: str) -> list[int]:
    arguments = enumerate(overload(name)._schema.arguments)
    return [i for i, a in arguments if str(a.type) == "Tensor" and not a.kwarg_only]


@functools.lru_cache(maxsize=256)
def _as_tensor(
    number: complex, written: str, dtype: torch.dtype, default: torch.dtype, has_no_dimensions: bool
) -> Tensor:
    """Returns a tensor of no dimensions that promotes with another as the number does, exact if possible.

    The other has that type. To make it takes 4 us, so it is kept: torch's kernels do not write to it. Equal
    numbers that are `written` otherwise, and another `default` type, have tensors of their own.
    """
    like = torch.empty(() if has_no_dimensions else 0, dtype=dtype)
    exact = torch.tensor(number, dtype=_EXACT[type(number)])
    result = torch.result_type(like, number)
    return exact if torch.result_type(like, exact) == result else exact.to(result)


_EXACT = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
