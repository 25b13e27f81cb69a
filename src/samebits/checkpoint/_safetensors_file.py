"""A safetensors file whose every byte follows from the manifest: no metadata, sorted header, no holes.

safetensors itself writes more than one metadata key in random order; a commit keeps metadata in its manifest.
Tensors that training goes on with are in memory of their own, aligned as torch aligns it: views into one
buffer would be aligned by their neighbours' sizes, and kernels may round differently for it. `copy_` into a
parameter needs no such memory, so a large tensor is a view of the file until then: a state of any size needs
no second copy.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from itertools import count
from typing import Any, BinaryIO

import numpy as np
import torch

from samebits import _digest as digests
from samebits._byte_digest import of_bytes
from samebits._objects.memory import are_near, fill_tensor, reach
from samebits._strides import contiguous_strides
from samebits.errors import CorruptCommitError

NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
"""The name of each dtype in safetensors; others are stored as bytes, with their dtype in the manifest."""

_LARGE = 1 << 20
"""Bytes from which on a tensor is mapped: below, it costs more than a copy."""
_POPULATE_READ = 22
"""MADV_POPULATE_READ, which Python's mmap does not name: all pages at once, not fault by fault."""

Infos = Mapping[str, Mapping[str, Any]]


def raw(tensor: torch.Tensor) -> np.ndarray:
    """Returns the bytes of a dense tensor in index order, as a flat uint8 array (a view if it can be).

    Raises NotImplementedError for views of dtypes that torch itself cannot copy, such as a transposed int4.
    """
    return digests.array_of(tensor).reshape(-1).view(np.uint8)


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns the manifest's entry for `tensor`, without the digest."""
    info: dict[str, Any] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if tensor.stride() != contiguous_strides(tensor.shape):
        # Kernels choose their order of summation by strides: channels_last and gaps must come back.
        stride = torch.empty_like(tensor, device="meta").stride()
        if any(size > 1 and a != b for size, a, b in zip(tensor.shape, stride, tensor.stride(), strict=True)):
            stride = tensor.stride() if are_near(tensor.shape, tensor.stride()) else stride
        if stride != contiguous_strides(tensor.shape):
            info["stride"] = list(stride)
    return info


def header(infos: Infos) -> tuple[bytes, list[str]]:
    """Returns the head of the file, and the names in data order: wide dtypes first, so all are aligned."""
    order = sorted(infos, key=lambda name: (-_dtype(infos[name]).itemsize, name))
    entries, end = {}, 0
    for name in order:
        dtype, begin, end = _dtype(infos[name]), end, end + nbytes(infos[name])
        known = dtype in NAMES
        shape = infos[name]["shape"] if known else [end - begin]
        entries[name] = {"dtype": NAMES.get(dtype, "U8"), "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, order


def nbytes(info: Mapping[str, Any]) -> int:
    """Returns the size of one tensor's data in bytes."""
    return math.prod(info["shape"]) * _dtype(info).itemsize


def read(file: BinaryIO, size: int, infos: Infos, where: str) -> dict[str, torch.Tensor]:
    """Returns the tensors of a file of `size` bytes, on the CPU; `where` is named in errors.

    Nothing is allocated for a file that does not have exactly the size that `infos` require. Large tensors of
    a file on a disk are views of it, mapped copy-on-write: copy those that are kept, since their addresses
    are aligned by their neighbours' sizes, and the mapping keeps the file's room on the disk.

    Raises:
        CorruptCommitError: a byte differs from `infos`.
        OSError: the file cannot be read.
        MemoryError: it is larger than the memory.
    """
    head, order = header(infos)
    wanted = len(head) + sum(map(nbytes, infos.values()))
    if size != wanted:
        raise CorruptCommitError(f"{where} has {size} bytes, not the {wanted} of its tensors")
    if file.read(len(head)) != head:
        raise CorruptCommitError(f"{where} does not have the header that the manifest describes")
    memory = _map(file) if any(map(_is_large, infos.values())) else None
    tensors: dict[str, torch.Tensor | Future[torch.Tensor]] = {}
    begin = len(head)
    with digests.hash_threads() as pool:
        for name in order:
            info, what = infos[name], f"{where}: tensor {name!r}"
            if memory is not None and _is_large(info):
                tensors[name] = pool.submit(_view_one, memory, begin, info, what)
                file.seek(begin + nbytes(info))
            else:
                tensors[name] = _read_one(file, info, what)
            begin += nbytes(info)
    return {name: one.result() if isinstance(one, Future) else one for name, one in tensors.items()}


def view(memory: mmap.mmap, begin: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """Returns the non-empty tensor whose bytes begin at `begin` of `memory`; it keeps the memory alive."""
    size = math.prod(shape) * dtype.itemsize
    return torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=begin).view(dtype).view(shape)


def mapped(info: Mapping[str, Any], where: str) -> torch.Tensor:
    """Returns a tensor that takes no room until it is written, and none once it is freed: malloc keeps it."""
    if nbytes(info) == 0:
        return allocate(info, where)
    memory = mmap.mmap(-1, nbytes(info), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return view(memory, 0, _dtype(info), info["shape"])


def _is_large(info: Mapping[str, Any]) -> bool:
    return nbytes(info) >= _LARGE and "stride" not in info


def _map(file: BinaryIO) -> mmap.mmap | None:
    """Returns a disk file as memory; None for any other, or where a disk error would be a signal."""
    try:
        memory = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        memory.madvise(_POPULATE_READ, 0, mmap.PAGESIZE)
    except (AttributeError, OSError, ValueError):
        return None
    return memory


def _view_one(memory: mmap.mmap, begin: int, info: Mapping[str, Any], where: str) -> torch.Tensor:
    page = begin // mmap.PAGESIZE * mmap.PAGESIZE
    memory.madvise(_POPULATE_READ, page, begin + nbytes(info) - page)  # an error of the disk is raised here
    tensor = view(memory, begin, _dtype(info), info["shape"])
    check_digest(raw(tensor), info, where)
    digests.verified[tensor] = info["digest"]
    return tensor


def _read_one(file: BinaryIO, info: Mapping[str, Any], where: str) -> torch.Tensor:
    tensor = allocate(info, where)
    data = raw(tensor)
    if fill(file, data) != data.nbytes:
        raise CorruptCommitError(f"{where} is cut off")
    check_digest(data, info, where)
    return with_strides_of(info, tensor, where)


def with_strides_of(info: Mapping[str, Any], tensor: torch.Tensor, where: str) -> torch.Tensor:
    """Returns a verified tensor with the strides of its entry."""
    if "stride" not in info:
        return tensor
    strided = _with_strides(tensor, info["stride"])
    if not np.array_equal(raw(strided), raw(tensor)):  # places that share memory have one value
        raise digest_error(where)
    return strided


def _with_strides(tensor: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    memory = torch.empty(reach(tensor.shape, stride) + 1, dtype=tensor.dtype)
    strided = memory.as_strided(tensor.shape, stride)
    fill_tensor(strided, tensor)
    return strided


def check_digest(data: np.ndarray, info: Mapping[str, Any], where: str) -> None:
    """Raises CorruptCommitError for bytes of another digest."""
    if of_bytes(data) != info["digest"]:
        raise digest_error(where)


def digest_error(where: str) -> CorruptCommitError:
    """Returns the error for a damaged tensor."""
    return CorruptCommitError(f"{where} does not have the digest it was written with")


def allocate(info: Mapping[str, Any], where: str) -> torch.Tensor:
    """Returns an uninitialized tensor. Raises CorruptCommitError or MemoryError."""
    try:
        return torch.empty(info["shape"], dtype=_dtype(info))
    except RuntimeError as error:
        if nbytes(info) == 0:  # a shape such as (0, 2**62), which torch refuses
            raise CorruptCommitError(f"{where} has the shape {info['shape']}: {error}") from error
        raise MemoryError(f"{where} takes {nbytes(info)} bytes: {error}") from error


def fill(file: BinaryIO, data: np.ndarray) -> int:
    """Reads until `data` is full or the file ends; returns the number of bytes read."""
    filled = 0
    while filled < data.nbytes:
        count = file.readinto(data.data[filled:])  # type: ignore[attr-defined] (every binary file has it)
        if not count:
            break
        filled += count
    return filled


def _dtype(info: Mapping[str, Any]) -> torch.dtype:
    dtype = vars(torch).get(info["dtype"])
    if not isinstance(dtype, torch.dtype):
        raise CorruptCommitError(f"this torch {torch.__version__} has no dtype {info['dtype']!r}")
    return dtype


class FileLayout:
    """The layout of a file of tensors with `infos` (of `describe`, without digests), and their entries."""

    def __init__(self, infos: Infos) -> None:
        self.head, self.names = header(infos)
        """The head of the file, and the tensors in the order of their data."""
        self.spans: list[tuple[int, int]] = []
        """First byte of each tensor in the file, and the first byte after it."""
        end = len(self.head)
        for name in self.names:
            begin, end = end, end + nbytes(infos[name])
            self.spans.append((begin, end))
        self.size = end
        places = {name: place for place, name in enumerate(self.names)}
        self.order = [places[name] for name in sorted(infos)]
        self.pieces = _pieces(infos)
        self.number = next(_numbers)
        """Unique among the layouts of this process."""


_numbers = count(1)


def _pieces(infos: Infos) -> list[str]:
    """Returns the canonical JSON of infos, cut where the digests belong ("digest" sorts first)."""
    texts = [
        f'{json.dumps(name)}:{{"digest":"\n",'
        f"{json.dumps(infos[name], sort_keys=True, separators=(',', ':'))[1:]}"
        for name in sorted(infos)
    ]
    return ("{" + ",".join(texts) + "}").split("\n")
