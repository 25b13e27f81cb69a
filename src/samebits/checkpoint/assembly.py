"""A commit in memory: its manifest and the bytes of its files, ready to be written anywhere."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samebits.checkpoint import tensorfile
from samebits.checkpoint.codec import encode
from samebits.checkpoint.manifest import Manifest, check_plain, samebits_version
from samebits.checkpoint.reading import MAX_MANIFEST_BYTES, TENSORS
from samebits.checkpoint.unsavable import unsavable
from samebits.errors import UnsavableStateError


@dataclass(frozen=True)
class Assembled:
    """What a commit writes: the blocks of the tensor file, then the manifest."""

    manifest: Manifest
    blocks: list[memoryview]

    @property
    def text(self) -> bytes:
        """The manifest's file."""
        return self.manifest.to_bytes()

    @property
    def nbytes(self) -> int:
        """Size of both files."""
        return sum(block.nbytes for block in self.blocks) + len(self.text)


def assemble(
    step: int,
    state: Mapping[str, Any],
    *,
    position: Mapping[str, Any],
    finished: bool,
    program: Mapping[str, Any],
    environment: Mapping[str, Any],
    parent: str | None,
) -> Assembled:
    """The commit of `state` after the one with digest `parent`. The blocks share memory with the tensors.

    Errors:
        UnsavableStateError: the state holds something that cannot be saved.
    """
    plain = {"position": position, "program": program, "environment": environment}
    for name, value in plain.items():
        check_plain(value, (name,))
    tree, tensors = encode(dict(state))
    data = {name: _raw(name, tensor) for name, tensor in tensors.items()}
    infos = {name: tensorfile.describe(tensor, data[name]) for name, tensor in tensors.items()}
    head, order = tensorfile.header(infos)
    size = len(head) + sum(data[name].nbytes for name in order)
    manifest = Manifest(
        step=operator.index(step), finished=bool(finished), tree=tree, tensors=infos, parent=parent,
        files={TENSORS: {"bytes": size}}, samebits=samebits_version(), **plain,
    )  # fmt: skip
    made = Assembled(manifest, [memoryview(head), *(data[name].data for name in order)])
    if len(made.text) > MAX_MANIFEST_BYTES:
        raise UnsavableStateError(
            f"the plain part of the state takes {len(made.text)} bytes, more than {MAX_MANIFEST_BYTES}. "
            "Keep long lists of numbers as tensors or NumPy arrays."
        )
    return made


def _raw(name: str, tensor: torch.Tensor) -> np.ndarray:
    try:
        return tensorfile.raw(tensor)
    except NotImplementedError as error:
        raise unsavable([name], tensor, f"a view that torch cannot copy ({error})") from error
