"""Numba's side of kernels: compilation, with a cache whose failures are misses.

Imported by the first call of a kernel, since Numba takes 0.3 s; definitions of kernels are in `lazy_kernel`.
Rules for a kernel: no libm (log, exp, sin, ...), so that its bits depend on IEEE arithmetic alone and Intel's
SVML has nothing to replace; no prange and no threads, so that it may be called after a fork. The type of a
vector has its number of lanes in a kernel's definition; LLVM cuts it into what the machine has.
"""

from __future__ import annotations

import operator
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import llvmlite.binding
import numba
import numpy.ma  # noqa: F401 (Numba would import it outside `lazy_kernel.compilation_lock`)
import xxhash
from llvmlite import ir as ir
from numba import carray as carray
from numba import types as types
from numba.core import cgutils as cgutils
from numba.core.caching import _Cache
from numba.core.ccallback import CFunc
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.datamodel.models import PrimitiveModel
from numba.core.runtime import rtsys
from numba.core.serialize import dumps
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic as intrinsic
from numba.extending import lower_builtin, register_model, typeof_impl

from samebits._context import cache_root
from samebits._native.lazy_kernel import Deferred, compilation_lock

_PACKAGE = Path(__file__).resolve().parent.parent
_CHECKSUM_BYTES = 16
_WHOLE = {"_native", "arithmetic"}
"""Here every file counts: formulas are traced through plain functions and tables, which have no mark."""
_MARKS = b"@kernel", b"@inlined", b"@instruction", b"on_team"


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Returns the folder of compiled kernels, created if need be; None if none can be written.

    Below `cache_root()` there is one for each digest of all kernel sources, Numba, llvmlite and Python.
    """
    try:
        folder = cache_root() / f"kernels-{_sources_digest()}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _sources_digest(package: Path = _PACKAGE) -> str:
    """Returns a digest of the files that define kernels: Numba misses an edit of a callee in another file."""
    hasher = xxhash.xxh3_64(repr((numba.__version__, llvmlite.__version__, sys.version_info[:3])).encode())
    for path in sorted(path for path in package.rglob("*") if path.suffix in {".py", ".json"}):
        name, source = path.relative_to(package), path.read_bytes()
        if name.parts[0] in _WHOLE or any(mark in source for mark in _MARKS):
            hasher.update(name.as_posix().encode())
            hasher.update(source)
    return hasher.hexdigest()


class _KernelCache(_Cache):
    """One file per kernel, signature and CPU: a checksum and the pickled code. Every failure is a miss."""

    cache_path = None

    def __init__(self, name: str) -> None:
        self.name = name

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Returns the compiled overload, or None if it is absent, corrupt, or from another CPU."""
        rtsys.initialize(target_context)  # not refresh(): loaded code needs no compiler, and that saves 0.4 s
        try:
            stored = self._path(sig, target_context).read_bytes()
            checksum, code = stored[:_CHECKSUM_BYTES], stored[_CHECKSUM_BYTES:]
            if xxhash.xxh3_128_digest(code) != checksum:
                return None
            return CompileResult._rebuild(target_context, *pickle.loads(code))  # noqa: S301 (our own cache)
        except Exception:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Writes to a second file and renames it, so that no reader or second writer sees half a file."""
        if data.library.has_dynamic_globals:
            return
        try:
            path = self._path(sig, data.target_context)
            code = dumps(data._reduce())
            beside = path.with_suffix(f".{os.getpid()}")
            beside.write_bytes(xxhash.xxh3_128_digest(code) + code)
            beside.replace(path)
        except Exception:
            return

    def _path(self, sig: Any, target_context: Any) -> Path:
        folder = cache_folder()
        if folder is None:
            raise FileNotFoundError
        # magic_tuple: target triple, CPU name and features.
        where = (self.name, str(sig), target_context.codegen().magic_tuple())
        key = xxhash.xxh3_128_hexdigest(repr(where).encode())
        return folder / f"{self.name.rpartition('.')[2]}-{key}.kernel"

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


def inlined(function: Callable[..., Any]) -> Any:
    """Returns a part of kernels, expanded where it is called."""
    return numba.njit(inline="always")(function)


def dispatcher(function: Callable[..., Any]) -> Any:
    """Returns a kernel that is compiled for the types of its arguments at its first call."""
    made: Any = numba.njit(nogil=True, error_model="numpy", fastmath=False)(function)
    made._cache = _KernelCache(f"{function.__module__}.{function.__qualname__}")
    return made


def only(function: Callable[..., Any], signature: str) -> Any:
    """Returns a kernel for one signature, compiled at its first call."""
    made = dispatcher(function)

    def compile_for_args(*args: Any) -> Any:
        with compilation_lock(), global_compiler_lock:  # it imports the rest of Numba
            if not made.overloads:  # else another thread was faster
                made.compile(signature)
                made.disable_compile()
            (overload,) = made.overloads.values()
        return overload.entry_point  # Numba's C dispatcher calls it with the arguments

    made._compile_for_args = compile_for_args
    return made


def part(function: Callable[..., Any], fastmath: set[str]) -> Any:
    """Returns the compiled chunk function of a parallel kernel, which `callback` calls."""
    return numba.njit(nogil=True, error_model="numpy", fastmath=fastmath)(function)


def callback(function: Callable[..., Any], name: str) -> Any:
    """Compiles and returns a C function of a pointer to int64; `name` is that of its file in the cache."""
    signature = types.void(types.CPointer(types.int64))
    options = {"nogil": True, "error_model": "numpy"}
    with global_compiler_lock:
        made: Any = CFunc(function, (signature.args, signature.return_type), {}, options)
        made._cache = _KernelCache(name)
        made.compile()
        return made


def external(name: str, address: int | None, result: str, arguments: Sequence[str]) -> Any:
    """Returns the C function at an address, with types by their names in Numba."""
    llvmlite.binding.add_symbol(name, address)
    kinds = [getattr(types, kind) for kind in arguments]
    return types.ExternalFunction(name, getattr(types, result)(*kinds))


@typeof_impl.register(Deferred)
def _type_of_deferred(value: Deferred, context: Any) -> Any:
    """Types a part that a kernel names as a module's attribute, which `with_compiled_globals` cannot see."""
    return typeof_impl(value.get(), context)


class VectorType(types.Type):
    """Some lanes of one scalar type."""

    def __init__(self, element: Any, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"vector({element} x {lanes})")


@register_model(VectorType)
class _VectorModel(PrimitiveModel):
    """A vector is LLVM's vector, in registers and in memory."""

    def __init__(self, manager: Any, vector: Any) -> None:
        element = manager.lookup(vector.element).get_value_type()
        super().__init__(manager, vector, ir.VectorType(element, vector.lanes))


@cache
def vector(element: str, lanes: int) -> VectorType:
    """Returns the type of that many lanes of a type of that name in Numba."""
    return VectorType(getattr(types, element), lanes)


def _arithmetic(operation: Any, build: Callable[[Any], Any]) -> None:
    """Gives vectors an operator, lane by lane."""

    class _OfVectors(AbstractTemplate):
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and isinstance(args[0], VectorType) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    register: Any = infer_global
    register(operation)(_OfVectors)

    def lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return build(builder)(*args)

    lower_builtin(operation, VectorType, VectorType)(lower)


_arithmetic(operator.add, lambda builder: builder.fadd)
_arithmetic(operator.sub, lambda builder: builder.fsub)
_arithmetic(operator.mul, lambda builder: builder.fmul)
_arithmetic(operator.truediv, lambda builder: builder.fdiv)
