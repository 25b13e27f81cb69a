"""Machine code of kernels: compiled once on a machine, then read from a cache whose failures are misses.

Imported by the first call of a kernel, since LLVM takes time to import. A file of the cache is a checksum and
an object file. A second process that needs a kernel waits until the first one has compiled it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash

from samebits._context import cache_root
from samebits._native import llvm
from samebits._native.entry_points import kernel_module as kernel_module
from samebits._native.entry_points import team_module as team_module

_PACKAGE = Path(__file__).resolve().parent.parent
_CHECKSUM_BYTES = 16
_WHOLE = {"_native", "arithmetic"}
"""Here every file counts: formulas are traced through plain functions and tables, which have no mark."""
_MARKS = b"@kernel", b"@inlined", b"@instruction", b"on_team"


compiled_here: list[str] = []
"""The names of the kernels that this process has compiled, and not found in the cache."""


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Returns the folder of compiled kernels, created if need be; None if none can be written.

    Below `cache_root()` there is one for each digest of all kernel sources and llvmlite.
    """
    try:
        folder = cache_root() / f"kernels-{_sources_digest()}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def _sources_digest(package: Path = _PACKAGE) -> str:
    """Returns a digest of the files that define kernels."""
    hasher = xxhash.xxh3_64(llvm.VERSION.encode())
    for path in sorted(path for path in package.rglob("*") if path.suffix in {".py", ".json"}):
        name, source = path.relative_to(package), path.read_bytes()
        if name.parts[0] in _WHOLE or any(mark in source for mark in _MARKS):
            hasher.update(name.as_posix().encode())
            hasher.update(source)
    return hasher.hexdigest()


def address_of(name: str, module: Callable[[], Any]) -> int:
    """Returns the address of the function `name` of a module, which is compiled if the cache has it not."""
    path = _path(name)
    code = _read(path)
    if code is None:
        with _alone(path):
            code = _read(path)
            if code is None:
                compiled_here.append(name)
                code = llvm.compiled(module())
                _write(path, code)
    return llvm.loaded(code, name)


def _path(name: str) -> Path | None:
    folder = cache_folder()
    key = xxhash.xxh3_128_hexdigest(repr((name, llvm.target())).encode())
    return None if folder is None else folder / f"{name.rpartition('.')[2]}-{key}.kernel"


def _read(path: Path | None) -> bytes | None:
    """Returns a file's code; None if it is absent or corrupt."""
    try:
        stored = b"" if path is None else path.read_bytes()
    except OSError:
        return None
    checksum, code = stored[:_CHECKSUM_BYTES], stored[_CHECKSUM_BYTES:]
    return code if code and xxhash.xxh3_128_digest(code) == checksum else None


def _write(path: Path | None, code: bytes) -> None:
    """Writes to a second file and renames it, so that no reader or second writer sees half a file."""
    if path is None:
        return
    try:
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_bytes(xxhash.xxh3_128_digest(code) + code)
        beside.replace(path)
    except OSError:
        return


@contextmanager
def _alone(path: Path | None) -> Iterator[None]:
    """Keeps other processes from compiling the same kernel; where no file can be locked, nobody waits."""
    try:
        descriptor = (
            None if path is None else os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        )
    except OSError:
        descriptor = None
    try:
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
