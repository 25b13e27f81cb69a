"""A state as one string of bytes, to be sent to another process of the same run. No pickle; digests reveal damage."""

from __future__ import annotations

import io
import json
from typing import Any

from samebits import _digest as digest
from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._codec import decode, encode


def pack(value: Any) -> bytes:
    """Returns `value` as bytes, from which `unpack` restores equal bits, types and strides.

    Raises `UnsavableStateError` as `encode` does.
    """
    tree, tensors = encode(value)
    data = {name: safetensors_file.raw(tensor) for name, tensor in tensors.items()}
    infos = {
        name: {**safetensors_file.describe(tensor), "digest": digest.of_bytes(data[name])}
        for name, tensor in tensors.items()
    }
    head, order = safetensors_file.header(infos)
    text = json.dumps([tree, infos], separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, head, *(data[name].data for name in order)])


def unpack(data: bytes | memoryview) -> Any:
    """Returns the value that `pack` encoded, tensors on the CPU. Raises `CorruptCommitError` where bytes were damaged."""
    view = memoryview(data)
    begin = 8 + int.from_bytes(view[:8], "little")
    tree, infos = json.loads(bytes(view[8:begin]))
    body = view[begin:]
    return decode(tree, safetensors_file.read(io.BytesIO(body), body.nbytes, infos, "a state that was sent"))
