"""Chunks of a kernel on torch's OpenMP threads: no pool of ours, no queue, and no GIL.

The number of chunks never depends on the number of threads, so that the bits do not either.
"""

from __future__ import annotations

import ctypes
import re
import struct
from array import array
from collections.abc import Callable, Iterable
from functools import cache
from itertools import product
from typing import Any, TypeVar

import numpy as np
import torch

from samebits import _native as native
from samebits._native.float_bits import from_bits_64
from samebits._native.lazy_kernel import Part, compilation_lock, inlined, instruction, kernels
from samebits._native.torch_threads import parallel

_FLOAT, _INTEGER = struct.Struct("<d"), struct.Struct("<q")


def symbol(library: ctypes.CDLL | None, name: str, result: str) -> Part | None:
    """Returns a C function without arguments of a loaded library, as kernels call it; None if there is none.

    Registered under a name of ours, so that compiled code can be cached and linked again in another process.
    """
    function = getattr(library, name, None)
    if function is None:
        return None
    _symbols[f"samebits_{name}"] = ctypes.cast(function, ctypes.c_void_p).value or 0

    @instruction
    def call() -> Any:
        kind = getattr(native.types, result)

        def build(builder: Any) -> Any:
            form = native.ir.FunctionType(kind.llvm, [])
            return builder.call(native.llvm.function(builder.module, form, f"samebits_{name}"), [])

        return kind(), build

    return call


_symbols: dict[str, int] = {}
"""The C functions that kernels call."""


@instruction
def count_up(_counter: Any) -> Any:
    """Adds 1 to the integer at a pointer, atomically (acquire and release); returns its old value."""

    def build(builder: Any, counter: Any) -> Any:
        return builder.atomic_rmw("add", counter, native.ir.IntType(64)(1), "acq_rel")

    return native.types.int64(native.types.pointer_to(native.types.int64)), build


class OnTeam:
    """A kernel that the threads call together, such as one whose chunks they share (`on_team`).

    `write(name)` writes its LLVM module; `where` is the Python module in which it is defined.
    """

    def __init__(self, write: Callable[[str], Any], where: str, name: str, *, is_vectorized: bool) -> None:
        self._write, self.is_vectorized = write, is_vectorized
        self.name = f"{where}.{re.sub(r'[^0-9A-Za-z_]', '_', name)}"
        """Of the machine code."""
        kernels.append(self)
        self._compiled: tuple[int, Any] | None = None  # the address of the code, the function to call it

    def __call__(self, chunks: int, *args: int) -> None:
        """Runs chunks 0 to `chunks` - 1 on as many threads as torch would. `args`: integers, addresses."""
        packed = array("q", (0, chunks, *args))
        address, _ = packed.buffer_info()
        threads = min(torch.get_num_threads(), chunks) if chunks > 1 else 1
        code, alone = self._compiled or self._compile()
        if threads > 1 and parallel is not None:
            parallel(code, address, threads, 0)
        else:
            alone(address)

    def alone(self) -> Callable[[bytes], None]:
        """Returns the kernel for its only chunk, on this thread: takes `packed` as `run_packed` does."""
        return (self._compiled or self._compile())[1]

    def code(self) -> int:
        """Returns the address of the machine code, which takes `packed` as `run_packed` does."""
        return (self._compiled or self._compile())[0]

    def run_packed(self, chunks: int, packed: bytes) -> None:
        """Runs all chunks; `packed` has 0, their number and the arguments, 64 bits each, and is used once.

        It saves 1 us. The 0 is counted up in place, so that the bytes must be the caller's own and new.
        """
        threads = min(torch.get_num_threads(), chunks) if chunks > 1 else 1
        code, alone = self._compiled or self._compile()
        if threads > 1 and parallel is not None:
            parallel(code, packed, threads, 0)
        else:
            alone(packed)

    def _compile(self) -> tuple[int, Any]:
        # A fork waits for this lock. (That of a cached_property would be locked forever in a child.)
        with compilation_lock():
            if self._compiled is None:
                for name, address in _symbols.items():
                    native.llvm.add_symbol(name, address)
                code = native.machine_code.address_of(self)
                self._compiled = code, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code)
            return self._compiled

    def module(self) -> Any:
        """Returns the LLVM module of the machine code."""
        return self._write(self.name)


def on_team(part: Callable[[int, Any], None], *, name: str = "", is_vectorized: bool = False) -> OnTeam:
    """Compiles `part(chunk, args)` at first use; calling the result with (chunks, *args) runs all chunks.

    `args[0]` is the number of chunks and `args[1:]` the caller's arguments: integers, and addresses that
    `float32_at` and its like turn into pointers. Chunks must write to different places; they run in any
    order.

    Args:
        part: a function of the language of `compiler`.
        name: of the compiled code in the cache, where one function is compiled with several free variables.
        is_vectorized: its loops that take time are written with vectors. LLVM then does without passes that
            make vectors of loops and unroll them, and takes a third to a half less time. Measure what the
            kernel loses: the gradients of softmax along rows of 64 take 2.9 times as long without them.
    """

    def write(name: str) -> Any:
        return native.entry_points.team_module(Part(part), name)

    return OnTeam(write, part.__module__, name or part.__qualname__, is_vectorized=is_vectorized)


Made = TypeVar("Made")
_makers: list[Callable[[], Any]] = []


def declared() -> dict[str, Any]:
    """Returns by name all kernels of the modules that are imported: those of `variants` are made."""
    for make in _makers:
        make()
    return {kernel.name: kernel for kernel in kernels}


def variants(
    only: Callable[..., bool] = lambda **_: True, **choices: Iterable[Any]
) -> Callable[[Callable[..., Made]], Callable[..., Made]]:
    """Caches a function that makes kernels, and declares them; see `declared`.

    Args:
        only: which combinations of the choices are declared; without, all.
        choices: what each argument of the function can be.
    """

    def declare(make: Callable[..., Made]) -> Callable[..., Made]:
        cached = cache(make)
        combinations = [dict(zip(choices, chosen, strict=True)) for chosen in product(*choices.values())]
        _makers.append(lambda: [cached(**chosen) for chosen in combinations if only(**chosen)])
        return cached

    return declare


def _pointer_to(element: str) -> Any:
    @instruction
    def pointer(_address: Any) -> Any:
        types = native.types
        kind = types.pointer_to(getattr(types, element))
        return kind(types.int64), lambda builder, address: builder.inttoptr(address, kind.llvm)

    return pointer


float32_at = _pointer_to("float32")
float64_at = _pointer_to("float64")
uint8_at = _pointer_to("uint8")
uint16_at = _pointer_to("uint16")
uint32_at = _pointer_to("uint32")
uint64_at = _pointer_to("uint64")
int64_at = _pointer_to("int64")


def as_argument(number: float) -> int:
    """Returns a float64 as an integer argument of a kernel, which reads it by `float_of`."""
    return _INTEGER.unpack(_FLOAT.pack(number))[0]


@inlined
def float_of(argument: Any) -> Any:
    """Returns the float64 of `as_argument`."""
    return from_bits_64(np.uint64(argument))
