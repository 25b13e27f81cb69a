"""Definitions of kernels, without LLVM, which is imported, and compiles them, when one is first called."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from samebits import _native as native


class Part:
    """A function that is compiled in place where a kernel calls it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function: Any = function
        self.__doc__ = function.__doc__

    __call__: Callable[..., Any]
    """Only in a kernel, but for `Kernel` and `Formula`."""


class Instruction(Part):
    """An expression of kernels, given as LLVM instructions.

    `build(*types)` gets the types of the arguments, and returns a signature and `write(builder, *values)`.
    """

    @property
    def build(self) -> Callable[..., Any]:
        """The function that returns the signature and the code."""
        return self.function


inlined, instruction = Part, Instruction
"""Decorators: a part of kernels, and an expression of theirs that is given as LLVM instructions."""
compiled_here: dict[str, float] = {}
"""The kernels that this process compiled, as no pack or cache had them: names, and seconds that each took."""
kernels: list[Any] = []
"""All kernels that were made: each has `name`, `module()`, which is compiled, and `is_vectorized`."""


class Kernel(Part):
    """A function that Python calls, compiled for one signature: numbers, and arrays of NumPy."""

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        super().__init__(function)
        self._signature = signature
        own = f"{function.__qualname__}__{signature}"
        self.name = f"{function.__module__}.{re.sub(r'[^0-9A-Za-z_]', '_', own)}"
        """Of the machine code."""
        self.is_vectorized = False
        kernels.append(self)
        self.compiled: Any = None
        """The compiled function, after the first call."""

    @cached_property
    def _parsed(self) -> tuple[Any, Any]:
        return native.entry_points.signature_of(self._signature)

    @property
    def results(self) -> Any:
        """The types of what it returns."""
        return self._parsed[0]

    @property
    def arguments(self) -> Any:
        """The types of what it takes."""
        return self._parsed[1]

    def __call__(self, *arguments: Any) -> Any:
        """Runs it: integers are taken modulo 2**64, as signed or unsigned ones of the signature."""
        return (self.compiled or self._compile())(*arguments)

    def _compile(self) -> Any:
        with compilation_lock():
            if self.compiled is None:
                self.compiled = _function_of_python(self.name, native.machine_code.address_of(self))
            return self.compiled

    def module(self) -> Any:
        """Returns the LLVM module of the machine code."""
        return native.entry_points.kernel_module(self, self.name)


class _MethodDefinition(ctypes.Structure):
    """CPython's `PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("text", ctypes.c_char_p),
    )


_METH_FASTCALL = 0x80
_definitions: list[_MethodDefinition] = []
"""They must live as long as the functions."""


def _function_of_python(name: str, address: int) -> Any:
    """Returns compiled code as a function: it is called as fast as one of C (0.1 us; ctypes takes 1.4)."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p), ctypes.py_object
    _definitions.append(_MethodDefinition(name.encode(), address, _METH_FASTCALL, None))
    return make(ctypes.addressof(_definitions[-1]), None, None)


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Compiles a function when it is first called, as `@kernel("uint64(uint64, int64[::1])")`: no GIL."""
    return lambda function: Kernel(function, signature)


_lock = threading.RLock()
_makers: list[int] = []
_imported: list[int] = [0]


@contextmanager
def compilation_lock() -> Iterator[None]:
    """Lets one thread at a time import the compiler or compile; a fork waits for the end of the block."""
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


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
