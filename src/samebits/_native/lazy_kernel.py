"""Definitions of kernels without Numba, which is imported, and compiles them, when one is first called.

A kernel's parts are found where Python would find them, among the globals and free variables of its function.
Numba gets a copy of the function in which they are replaced by compiled ones.
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
    """A kernel, a part of kernels, or something that their bodies call, made by `make` at the first call."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self.made: Any = None
        """None until it is needed."""

    def __call__(self, *args: Any) -> Any:
        """Calls the made object, if it can be called from Python."""
        return (self.made or self.get())(*args)

    def get(self) -> Any:
        """Returns Numba's object; makes it if needed."""
        with compilation_lock():
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
        return lambda body: Deferred(lambda: native.compilation.only(with_compiled_globals(body), function))
    return Deferred(lambda: native.compilation.dispatcher(with_compiled_globals(function)))


def inlined(function: Callable[..., Any]) -> Deferred:
    """Returns a part of kernels, expanded where it is called: LLVM vectorises no loop with a call."""
    return Deferred(lambda: native.compilation.inlined(with_compiled_globals(function)))


def called(function: Callable[..., Any]) -> Deferred:
    """Returns a part of kernels that is compiled once in a process; LLVM decides where it is expanded."""
    return Deferred(lambda: native.compilation.part(with_compiled_globals(function), set()))


def instruction(build: Callable[..., Any]) -> Deferred:
    """Returns an expression of kernels, given as LLVM instructions (`numba.extending.intrinsic`)."""
    return Deferred(lambda: native.compilation.intrinsic(build))


def with_compiled_globals(function: Any) -> Any:
    """Returns a copy of a function whose globals and free variables are replaced by Numba's objects."""
    scope = function.__globals__
    names = [name for one in bytecode.whole(function.__code__) for name in bytecode.globals_read(one)]
    made = {name: scope[name].get() for name in names if isinstance(scope.get(name), Deferred)}
    copy = FunctionType(
        function.__code__,
        {**scope, **made},
        function.__name__,
        function.__defaults__,
        tuple(CellType(_compiled_value(cell.cell_contents)) for cell in function.__closure__ or ()),
    )
    copy.__module__, copy.__qualname__ = function.__module__, function.__qualname__
    return copy


def _compiled_value(value: Any) -> Any:
    return value.get() if isinstance(value, Deferred) else value


_lock = threading.RLock()
_makers: list[int] = []
_imported: list[int] = [0]


@contextmanager
def compilation_lock() -> Iterator[None]:
    """Lets one thread at a time import Numba or compile with it; a fork waits for the end of the block."""
    with _lock:
        _makers.append(len(sys.modules))
        try:
            yield
        finally:
            before = _makers.pop()
            if not _makers:
                _imported[0] += len(sys.modules) - before


def imported_by_others() -> int:
    """Returns the number of imported modules, but for those that compile kernels: they draw nothing."""
    return len(sys.modules) - _imported[0]


def _before_fork() -> None:
    """Waits for the compiler's imports and compilations: in the child their locks would never be free."""
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
