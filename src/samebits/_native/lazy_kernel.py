"""Kernels as they are written down, without Numba: it is imported, and makes them, when one is first called.

A kernel's parts are found where Python would find them, among the globals and free variables of its function. Numba
gets a copy of the function in which they are what Numba has made of them.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any, overload

from samebits import _native as native
from samebits._inspect._program import bytecode


class Deferred:
    """What `make` gives, made at the first call: a kernel, a part of kernels, or something that their bodies call."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.made: Any = None
        """None until it is needed."""

    def __call__(self, *args: Any) -> Any:
        """Calls what is made, where that can be called from Python."""
        return (self.made or self.get())(*args)

    def get(self) -> Any:
        """What Numba knows; made now if it was not."""
        with making():
            if self.made is None:
                self.made = self._make()
            return self.made


@overload
def kernel(function: Callable[..., Any], /) -> Deferred: ...
@overload
def kernel(signature: str, /) -> Callable[[Callable[..., Any]], Deferred]: ...
def kernel(function: Any, /) -> Any:
    """Compiles a function with Numba when it is first called: no GIL, no fast math, cached.

    With a signature (`@kernel("uint64(uint64)")`) there is only that overload, and arguments are converted to
    it: a Python int on either side of 2**63 must not compile twice.
    """
    if isinstance(function, str):
        return lambda body: Deferred(lambda: native.compilation.only(resolved(body), function))
    return Deferred(lambda: native.compilation.dispatcher(resolved(function)))


def inlined(function: Callable[..., Any]) -> Deferred:
    """A part of kernels, expanded where it is called: LLVM vectorises no loop that has a call in it."""
    return Deferred(lambda: native.compilation.inlined(resolved(function)))


def instruction(build: Callable[..., Any]) -> Deferred:
    """An expression of kernels that Python has no words for, given as LLVM instructions (`numba.extending.intrinsic`)."""
    return Deferred(lambda: native.compilation.intrinsic(build))


def resolved(function: Any) -> Any:
    """A copy of a function whose globals and free variables are what Numba has made of them."""
    scope = function.__globals__
    names = [name for one in bytecode.whole(function.__code__) for name in bytecode.globals_read(one)]
    made = {name: scope[name].get() for name in names if isinstance(scope.get(name), Deferred)}
    copy = FunctionType(
        function.__code__,
        {**scope, **made},
        function.__name__,
        function.__defaults__,
        tuple(CellType(_known(cell.cell_contents)) for cell in function.__closure__ or ()),
    )
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy


def _known(value: Any) -> Any:
    return value.get() if isinstance(value, Deferred) else value


_lock = threading.RLock()
_makers: list[int] = []
_imported: list[int] = [0]


@contextmanager
def making() -> Iterator[None]:
    """One thread at a time imports Numba, or makes something with it; a fork waits for its end."""
    with _lock:
        _makers.append(len(sys.modules))
        try:
            yield
        finally:
            before = _makers.pop()
            if not _makers:
                _imported[0] += len(sys.modules) - before


def modules_of_others() -> int:
    """How many modules are imported, but for those that making kernels has brought, which draw nothing."""
    return len(sys.modules) - _imported[0]


def _before_fork() -> None:
    """Waits for who imports what compiling needs, then for who compiles: in the child their locks would never be free."""
    _lock.acquire()
    compiler = sys.modules.get("numba.core.compiler_lock")
    _held.append(getattr(compiler, "global_compiler_lock", None))
    if _held[-1] is not None:
        _held[-1].acquire()


def _after_fork() -> None:
    held = _held.pop()
    if held is not None:
        held.release()
    _lock.release()


_held: list[Any] = []
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
