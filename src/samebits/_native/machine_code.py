"""Machine code of kernels: from the wheel's pack, or compiled once on a machine and then read from a cache.

Imported by the first call of a kernel, since LLVM takes time to import. The pack has the kernels of one kind
of CPU, so that all CPUs of a kind run the same machine code; tools/wheel.py makes it. It counts only for the
sources that it was made of. A file of the pack or the cache is a checksum and an object file; one that cannot
be read is a miss. A second process that needs a kernel waits until the first one has compiled it.
"""

from __future__ import annotations

import fcntl
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import xxhash

from samebits._context import cache_root
from samebits._garbage_collection import without_garbage_collection
from samebits._native import llvm
from samebits._native.lazy_kernel import compiled_here

_PACKAGE = Path(__file__).resolve().parent.parent
_CHECKSUM_BYTES = 16
_WHOLE = {"_native", "arithmetic"}
"""Here every file counts: formulas are traced through plain functions and tables, which have no mark."""
_MARKS = b"@kernel", b"@inlined", b"@instruction", b"@variants", b"on_team"


@lru_cache(maxsize=1)
def cache_folder() -> Path | None:
    """Returns the folder of compiled kernels, created if need be; None if none can be written.

    Below `cache_root()` there is one for each digest of all kernel sources and llvmlite.
    """
    try:
        made_of = xxhash.xxh3_64_hexdigest(f"{sources_digest()} {llvm.VERSION}".encode())
        folder = cache_root() / f"kernels-{made_of}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: there is no home directory
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


@cache
def sources_digest(package: Path = _PACKAGE) -> str:
    """Returns a digest of the files that define kernels."""
    hasher = xxhash.xxh3_128()
    for path in sorted(path for path in package.rglob("*") if path.suffix in {".py", ".json"}):
        name, source = path.relative_to(package), path.read_bytes()
        if name.parts[0] in _WHOLE or any(mark in source for mark in _MARKS):
            hasher.update(name.as_posix().encode())
            hasher.update(source)
    return hasher.hexdigest()


PACKS = Path(__file__).with_name("packs")
"""Here a wheel has a file for each kind of CPU."""


@lru_cache(maxsize=1)
def _packs() -> list[ZipFile]:
    """Returns the packs for this CPU that were made of these sources.

    That of `x86-64-v4-bf16` has only the kernels that differ from those of `x86-64-v4`.
    """
    kind, found = llvm.target(), []
    for name in dict.fromkeys((kind, kind.removesuffix("-bf16"))):
        try:
            # From memory: forked processes would move one another's place in an open file.
            pack = ZipFile(BytesIO((PACKS / f"{name}.zip").read_bytes()))
        except (OSError, BadZipFile):
            continue
        if pack.comment.decode(errors="replace") == sources_digest():
            found.append(pack)
    return found


def _packed(name: str) -> bytes | None:
    """Returns the code of a kernel in the wheel's pack; None if it has none or is corrupt."""
    for pack in _packs():
        try:
            return _checked(pack.read(name))
        except (KeyError, OSError, BadZipFile, zlib.error):
            continue
    return None


def address_of(kernel: Any) -> int:
    """Returns the address of a kernel's machine code, compiled if neither pack nor cache has it."""
    return llvm.loaded(_packed(kernel.name) or _cached(kernel), kernel.name)


def _cached(kernel: Any) -> bytes:
    path = _path(kernel.name)
    code = _read(path)
    if code is None:
        with _alone(path):
            code = _read(path)
            if code is None:
                begin = time.perf_counter()
                with without_garbage_collection():  # collections took an eighth of the time
                    code = compiled(kernel)
                compiled_here[kernel.name] = time.perf_counter() - begin
                _write(path, with_checksum(code))
    return code


def compiled(kernel: Any) -> bytes:
    """Returns the object file of a kernel, compiled for this kind of CPU."""
    return llvm.compiled(kernel.module(), is_vectorized=kernel.is_vectorized)


def _path(name: str) -> Path | None:
    folder = cache_folder()
    key = xxhash.xxh3_128_hexdigest(repr((name, llvm.cpu())).encode())
    return None if folder is None else folder / f"{name.rpartition('.')[2]}-{key}.kernel"


def with_checksum(code: bytes) -> bytes:
    """Returns the content of a file of the pack or the cache."""
    return xxhash.xxh3_128_digest(code) + code


def _checked(stored: bytes) -> bytes | None:
    """Returns the code of such a content; None if it is corrupt."""
    checksum, code = stored[:_CHECKSUM_BYTES], stored[_CHECKSUM_BYTES:]
    return code if code and xxhash.xxh3_128_digest(code) == checksum else None


def _read(path: Path | None) -> bytes | None:
    """Returns a file's code; None if it is absent or corrupt."""
    try:
        return None if path is None else _checked(path.read_bytes())
    except OSError:
        return None


def _write(path: Path | None, content: bytes) -> None:
    """Writes to a second file and renames it, so that no reader or second writer sees half a file."""
    if path is None:
        return
    try:
        beside = path.with_suffix(f".{os.getpid()}")
        beside.write_bytes(content)
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
