"""A commit in memory: its manifest and the bytes of its files, ready to be written anywhere."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._async_writer.writer.manifest_template import Commit, Draft, digest
from samebits.checkpoint._codec import encode
from samebits.checkpoint._manifest import canonical, check_plain, draft
from samebits.checkpoint._tensor_layout import FileLayout
from samebits.checkpoint._unsavable import unsavable


@dataclass(frozen=True)
class Assembled:
    """What a commit writes: the head of the tensor file and the tensors, then the manifest."""

    draft: Draft
    head: memoryview
    tensors: list[memoryview]

    @property
    def blocks(self) -> list[memoryview]:
        """The tensor file."""
        return [self.head, *self.tensors]

    def signed(self, parent: str | None) -> tuple[Commit, bytes]:
        """The commit after the one with digest `parent`, and its manifest's file."""
        return self.draft.signed(parent, [digest(data) for data in self.tensors])

    @property
    def nbytes(self) -> int:
        """Size of both files, at most."""
        return sum(block.nbytes for block in self.blocks) + self.draft.size


def assemble(
    step: int,
    state: Mapping[str, Any],
    *,
    position: Mapping[str, Any],
    finished: bool,
    program: Mapping[str, Any],
    environment: Mapping[str, Any],
    rolling: str | None = None,
    value: float | None = None,
) -> Assembled:
    """The commit of `state`. The tensors' blocks share memory with it.

    Errors:
        UnsavableStateError: the state holds something that cannot be saved.
    """
    plain = {"position": position, "program": program, "environment": environment}
    for name, fields in plain.items():
        check_plain(fields, (name,))
    tree, tensors = encode(dict(state))
    data = {name: _raw(name, tensor) for name, tensor in tensors.items()}
    layout = FileLayout({name: safetensors_file.describe(tensor) for name, tensor in tensors.items()})
    made = draft(
        layout,
        step=operator.index(step),
        finished=bool(finished),
        tree=canonical(tree),
        rolling=rolling,
        value=value,
        **{name: canonical(fields) for name, fields in plain.items()},
    )
    return Assembled(made, memoryview(layout.head), [data[name].data for name in layout.names])


def _raw(name: str, tensor: torch.Tensor) -> np.ndarray:
    try:
        return safetensors_file.raw(tensor)
    except NotImplementedError as error:
        raise unsavable([name], tensor, f"a view that torch cannot copy ({error})") from error
