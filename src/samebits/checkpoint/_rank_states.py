"""The states of several ranks in one commit: rank 0's in whole, and the differences of each other rank.

Differences are found by the digests of the tensors and of the plain half, so replicas take no more room than
one. They are sent between the processes of a run without pickle; digests reveal damage.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from samebits import _digest as digest
from samebits._byte_digest import of_bytes
from samebits._dtensors import is_dtensor
from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._codec import Tensors, decode, encode
from samebits.errors import CorruptCommitError, RunMismatchError

KEY = "ranks"
"""The entry of a commit's state that holds the parts of the other ranks; a run of one process has none."""


@dataclass(frozen=True)
class EncodedState:
    """One rank's state, encoded, with a hash of everything in it."""

    tree: Any
    tensors: Tensors
    hashes: Mapping[str, int]
    """Hash of each tensor's dtype, shape, stride and bits."""

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> EncodedState:
        """Encodes a state. Raises `UnsavableStateError` as `encode` does."""
        tree, tensors = encode(dict(state))
        return cls(tree, tensors, {name: _hash(tensor) for name, tensor in tensors.items()})

    def digest(self) -> int:
        """Returns a hash of 63 bits, equal where the whole state is."""
        return digest.leaf(self.outline()) >> 1

    def outline(self) -> str:
        """Returns the JSON from which another rank finds its differences: the plain half and the hashes."""
        return json.dumps([self.tree, self.hashes])

    def difference(self, outline: str) -> dict[str, Any]:
        """Returns the differences of this state from the one with that outline."""
        tree, hashes = json.loads(outline)
        own = {name: tensor for name, tensor in self.tensors.items() if hashes.get(name) != self.hashes[name]}
        return {"nodes": json.dumps(_changes(tree, self.tree, [])), "tensors": own}


def join_states(first: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the state of a commit of several ranks, from rank 0's and the differences of ranks 1, 2, ..."""
    return {**first, KEY: list(parts)}


def rank_state(saved: Mapping[str, Any], rank: int, world_size: int, where: str) -> dict[str, Any]:
    """Returns the state of one rank.

    Raises RunMismatchError for a commit of another number of processes, CorruptCommitError for a part that
    does not fit to the state of rank 0.
    """
    parts = saved.get(KEY, [])
    if len(parts) + 1 != world_size:
        raise RunMismatchError(
            f"{where} was made by {_processes(len(parts) + 1)}, and this is {_processes(world_size)}. The "
            "batches and the order of sums follow their number, so start as many (torchrun "
            "--nproc-per-node), or use another run directory."
        )
    first = {name: value for name, value in saved.items() if name != KEY}
    if rank == 0 or not (parts[rank - 1]["tensors"] or json.loads(parts[rank - 1]["nodes"])):
        return first
    try:
        tree, tensors = encode(first)
        for path, node in json.loads(parts[rank - 1]["nodes"]):
            tree = _replace_node(tree, path, node)
        return decode(tree, {**tensors, **parts[rank - 1]["tensors"]})
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise CorruptCommitError(f"{where}: the part of rank {rank} cannot be read: {error!r}") from error


def leaf_hashes(state: Mapping[str, Any]) -> dict[str, int]:
    """Returns the hash of each tensor and plain value in a state, by its path ("run_state.total").

    Without DTensors: each rank has other rows of them.
    """
    found = dict(digest.leaves(dict(state)))
    own = [path for path, one, _ in digest.walk(dict(state)) if not is_dtensor(one)]
    return {path: found[path] for path in own if path in found}


def _hash(tensor: torch.Tensor) -> int:
    if is_dtensor(tensor):  # the digests of a commit cover its rows
        return digest.leaf([str(tensor.dtype), tuple(tensor.shape)])
    return digest.leaf((tensor, tuple(tensor.stride())))


def _processes(number: int) -> str:
    return "one process" if number == 1 else f"{number} processes"


def _changes(old: Any, new: Any, path: list[int | str]) -> list[list[Any]]:
    """Returns pairs (path, node to put there) that turn `old` into `new` (trees of dicts and lists)."""
    if type(old) is type(new) is dict and old.keys() == new.keys():
        return [change for name in new for change in _changes(old[name], new[name], [*path, name])]
    if type(old) is type(new) is list and len(old) == len(new):
        return [
            change
            for number in range(len(new))
            for change in _changes(old[number], new[number], [*path, number])
        ]
    # 1, 1.0 and True are equal for Python, 0.0 and -0.0 too
    return [] if json.dumps(old) == json.dumps(new) else [[path, new]]


def _replace_node(tree: Any, path: Sequence[int | str], node: Any) -> Any:
    if not path:
        return node
    owner = tree
    for part in path[:-1]:
        owner = owner[part]
    owner[path[-1]] = node
    return tree


def pack(value: Any) -> bytes:
    """Returns `value` as bytes, from which `unpack` restores equal bits, types and strides.

    Raises `UnsavableStateError` as `encode` does.
    """
    tree, tensors = encode(value)
    data = {name: safetensors_file.raw(tensor) for name, tensor in tensors.items()}
    infos = {
        name: {**safetensors_file.describe(tensor), "digest": of_bytes(data[name])}
        for name, tensor in tensors.items()
    }
    head, order = safetensors_file.header(infos)
    text = json.dumps([tree, infos], separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, head, *(data[name].data for name in order)])


def unpack(data: bytes | memoryview) -> Any:
    """Returns the value that `pack` encoded, on the CPU. Raises `CorruptCommitError` for damaged bytes."""
    view = memoryview(data)
    begin = 8 + int.from_bytes(view[:8], "little")
    tree, infos = json.loads(bytes(view[8:begin]))
    body = view[begin:]
    return decode(tree, safetensors_file.read(io.BytesIO(body), body.nbytes, infos, "a state that was sent"))
