"""A user's own Triton kernel with atomics: they run in no fixed order. (Written from Triton's source; no GPU has run it.)"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from samebits._inspect.patching import Patches
from samebits._inspect.user_code import calling_line
from samebits.determinism._warn_once import warn_once
from samebits.errors import UndeclaredOpWarning

_ATOMIC = re.compile(r"\batomic_\w+")


def watch(patches: Patches, jit: ModuleType) -> None:
    """Checks each kernel of a user's at its first launch; `jit` is `triton.runtime.jit`, once it is imported."""
    patches.put(jit.JITFunction, "run", _check_at_launch(jit.JITFunction.run))


def _check_at_launch(run: Callable[..., Any]) -> Callable[..., Any]:
    seen: set[int] = set()

    @functools.wraps(run)
    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if id(self) not in seen:
            seen.add(id(self))
            _check_kernel(self)
        return run(self, *args, **kwargs)

    return launched


def _check_kernel(kernel: Any) -> None:
    atomics = sorted({name for source in _sources(kernel, set()) for name in _ATOMIC.findall(source)})
    if atomics:
        name = f"{kernel.fn.__module__}.{kernel.fn.__qualname__}"
        text = (
            f"the Triton kernel {name}, launched at {calling_line()} under op determinism, uses {', '.join(atomics)}: floating-point "
            "atomics are added in no fixed order. Let each program write its own result and reduce these in a second "
            "kernel; atomics on integers repeat."
        )
        warn_once(name, text, UndeclaredOpWarning)


def _sources(kernel: Any, seen: set[int]) -> Iterator[str]:
    """Yields the sources of a kernel and of the jitted functions that it calls by a global name."""
    if id(kernel) in seen:
        return
    seen.add(id(kernel))
    yield kernel.src
    for name in kernel.fn.__code__.co_names:
        called = kernel.fn.__globals__.get(name)
        if type(called) is type(kernel):
            yield from _sources(called, seen)
