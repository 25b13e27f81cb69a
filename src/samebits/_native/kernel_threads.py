"""Chunks of a kernel on torch's OpenMP threads: no pool of ours, no queue, and no GIL.

The number of chunks never depends on the number of threads, so that the bits do not either.
"""

from __future__ import annotations

import ctypes
import re
from array import array
from collections.abc import Callable
from typing import Any

import torch

from samebits import _native as native
from samebits._native.lazy_kernel import Deferred, compilation_lock, instruction, with_compiled_globals
from samebits._native.torch_threads import parallel


def symbol(library: ctypes.CDLL | None, name: str, result: str, *arguments: str) -> Deferred | None:
    """Returns a C function of a loaded library as kernels call it; None if the library does not have it.

    Types are given by their names in Numba ("int64"). Registered under a name of ours, so that compiled code
    can be cached and linked again in another process.
    """
    function = getattr(library, name, None)
    if function is None:
        return None
    address = ctypes.cast(function, ctypes.c_void_p).value
    return Deferred(lambda: native.compilation.external(f"samebits_{name}", address, result, arguments))


@instruction
def count_up(typing_context: Any, counter: Any) -> Any:
    """Adds 1 to the integer at a pointer, atomically (acquire and release); returns its old value."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = context.get_constant(native.types.int64, 1)
        return builder.atomic_rmw("add", arguments[0], one, "acq_rel")

    return native.types.int64(native.types.CPointer(native.types.int64)), build


class OnTeam:
    """A kernel `part(chunk, args)` whose chunks are shared among the threads; see `on_team`."""

    def __init__(self, part: Callable[[int, Any], None], name: str, fastmath: set[str]) -> None:
        self._part = part
        self._name = re.sub(r"\W", "_", name)
        self._fastmath = fastmath
        self._compiled: tuple[Any, int, Any] | None = (
            None  # the owner of the code, its address, the function to call it
        )

    def __call__(self, chunks: int, *args: int) -> None:
        """Runs chunks 0 to `chunks` - 1 on as many threads as torch would. `args`: integers, addresses."""
        packed = array("q", (0, chunks, *args))
        address, _ = packed.buffer_info()
        threads = min(torch.get_num_threads(), chunks) if chunks > 1 else 1
        _, code, alone = self._compiled or self._compile()
        if threads > 1 and parallel is not None:
            parallel(code, address, threads, 0)
        else:
            alone(address)

    def alone(self) -> Callable[[bytes], None]:
        """Returns the kernel for its only chunk, on this thread: takes `packed` as `run_packed` does."""
        return (self._compiled or self._compile())[2]

    def run_packed(self, chunks: int, packed: bytes) -> None:
        """Runs all chunks; `packed` has 0, their number and the arguments, 64 bits each, and is used once.

        It saves 1 us. The 0 is counted up in place, so that the bytes must be the caller's own and new.
        """
        threads = min(torch.get_num_threads(), chunks) if chunks > 1 else 1
        _, code, alone = self._compiled or self._compile()
        if threads > 1 and parallel is not None:
            parallel(code, packed, threads, 0)
        else:
            alone(packed)

    def _compile(self) -> tuple[Any, int, Any]:
        # A fork waits for this lock. (That of a cached_property would be locked forever in a child.)
        with compilation_lock():
            if self._compiled is None:
                code = native.compilation.callback(self._body(), f"{self._part.__module__}.{self._name}")
                self._compiled = (code, code.address, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.address))
            return self._compiled

    def _body(self) -> Any:
        part = native.compilation.part(_rename(self._part, self._name), self._fastmath)

        def body(packed: Any) -> None:
            args = native.carray(packed, (1 << 20,))[1:]  # the kernel knows the true length
            # A thread takes the next chunk when it is free, so that one that is suspended delays no other.
            chunk = count_up(packed)
            while chunk < args[0]:
                part(chunk, args)
                chunk = count_up(packed)

        return _rename(body, f"{self._part.__module__}.{self._name}")


def _rename(function: Any, name: str) -> Any:
    """Returns a copy with another name, which becomes that of its compiled code.

    Code from two cache files that has one name is linked as one function: a kernel would run another's loop.
    """
    copy = with_compiled_globals(function)
    copy.__name__ = copy.__qualname__ = re.sub(r"\W", "_", name)
    return copy


def on_team(part: Callable[[int, Any], None], *, name: str = "", reassociate: bool = False) -> OnTeam:
    """Compiles `part(chunk, args)` at first use; calling the result with (chunks, *args) runs all chunks.

    `args[0]` is the number of chunks and `args[1:]` the caller's arguments: integers, and addresses that
    `float32_at` and its like turn into pointers. Chunks must write to different places; they run in any
    order.

    Args:
        part: a function that Numba can compile.
        name: of the compiled code in the cache, where one function is compiled with several free variables.
        reassociate: lets LLVM reorder the sums of a loop, which vectorising them needs (once, when it
            compiles).
    """
    return OnTeam(part, name or part.__qualname__, {"reassoc", "contract"} if reassociate else set())


def _pointer_to(element: str) -> Any:
    @instruction
    def pointer(typing_context: Any, address: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        types = native.types
        return types.CPointer(getattr(types, element))(types.int64), build

    return pointer


float32_at = _pointer_to("float32")
float64_at = _pointer_to("float64")
uint8_at = _pointer_to("uint8")
uint16_at = _pointer_to("uint16")
uint32_at = _pointer_to("uint32")
uint64_at = _pointer_to("uint64")
int64_at = _pointer_to("int64")
