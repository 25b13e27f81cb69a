"""A safetensors file whose every byte follows from the manifest: no metadata, sorted header, no holes.

safetensors itself writes more than one metadata key in random order; a commit keeps metadata in its manifest.
Tensors are read one by one into memory of their own, aligned as torch aligns it: views into one buffer would
be aligned by their neighbours' sizes, and kernels may round differently for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
import torch

from samebits import _digest as digests
from samebits.errors import CorruptCommitError

NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16", torch.int16: "I16",
    torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64", torch.int64: "I64",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64",
    torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
}  # fmt: skip
"""The name of each dtype in safetensors; any other is stored as its bytes, and only the manifest has its dtype."""

Infos = Mapping[str, Mapping[str, Any]]


def raw(tensor: torch.Tensor) -> np.ndarray:
    """Returns the bytes of a dense tensor in the order of its indices, as a flat uint8 array (a view if it can be).

    Raises NotImplementedError for views of dtypes that torch itself cannot copy, such as a transposed int4.
    """
    return digests.array_of(tensor).reshape(-1).view(np.uint8)


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """Returns the manifest's entry for `tensor`, without the digest."""
    info: dict[str, Any] = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
    }
    if tensor.stride() != _contiguous(tensor.shape):
        # Kernels choose their order of summation by strides, so channels_last must come back as such.
        stride = torch.empty_like(tensor, device="meta").stride()
        if stride != _contiguous(tensor.shape):
            info["stride"] = list(stride)
    return info


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def header(infos: Infos) -> tuple[bytes, list[str]]:
    """Returns the head of the file, and the names in the order of their data: wide dtypes first, so all are aligned."""
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
    """Returns the tensors of a file of `size` bytes, on the CPU; `where` is named in errors. Nothing is allocated for a
    file that does not have exactly the size that `infos` require.

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
    return {name: _read_one(file, infos[name], f"{where}: tensor {name!r}") for name in order}


def _read_one(file: BinaryIO, info: Mapping[str, Any], where: str) -> torch.Tensor:
    tensor = _allocate(info, where)
    data = raw(tensor)
    if _fill(file, data) != data.nbytes:
        raise CorruptCommitError(f"{where} is cut off")
    if digests.of_bytes(data) != info["digest"]:
        raise CorruptCommitError(f"{where} does not have the digest it was written with")
    if "stride" in info:
        return torch.empty_strided(info["shape"], info["stride"], dtype=tensor.dtype).copy_(tensor)
    return tensor


def _allocate(info: Mapping[str, Any], where: str) -> torch.Tensor:
    try:
        return torch.empty(info["shape"], dtype=_dtype(info))
    except RuntimeError as error:
        if nbytes(info) == 0:  # a shape such as (0, 2**62), which torch refuses
            raise CorruptCommitError(f"{where} has the shape {info['shape']}: {error}") from error
        raise MemoryError(f"{where} takes {nbytes(info)} bytes: {error}") from error


def _fill(file: BinaryIO, data: np.ndarray) -> int:
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
