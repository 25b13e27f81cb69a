"""A commit in memory: its manifest and the bytes of its files, ready to be written."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._codec import encode
from samebits.checkpoint._manifest import canonical_json, check_plain, manifest_template
from samebits.checkpoint._tensor_layout import FileLayout
from samebits.checkpoint._unsavable import unsavable
from samebits.checkpoint._writer.manifest_template import ManifestTemplate


@dataclass(frozen=True)
class PreparedCommit:
    """The content of a commit's files: the head of the tensor file and the tensors, then the manifest."""

    template: ManifestTemplate
    head: memoryview
    tensors: list[memoryview]

    @property
    def nbytes(self) -> int:
        """Size of both files in bytes, at most."""
        return sum(block.nbytes for block in (self.head, *self.tensors)) + self.template.size


def prepare_commit(step: int, state: Mapping[str, Any], **fields: Any) -> PreparedCommit:
    """Returns the commit of `state`; `fields` are those of `CommitStore.commit`. The tensors' blocks share memory with it.

    Raises:
        UnsavableStateError: the state holds something that cannot be saved.
    """
    for name in ("position", "program", "environment"):
        check_plain(fields[name], (name,))
        fields[name] = canonical_json(fields[name])
    tree, tensors = encode(dict(state))
    data = {name: _raw(name, tensor) for name, tensor in tensors.items()}
    layout = FileLayout({name: safetensors_file.describe(tensor) for name, tensor in tensors.items()})
    template = manifest_template(layout, step=operator.index(step), tree=canonical_json(tree), **fields)
    return PreparedCommit(template, memoryview(layout.head), [data[name].data for name in layout.names])


def _raw(name: str, tensor: torch.Tensor) -> np.ndarray:
    try:
        return safetensors_file.raw(tensor)
    except NotImplementedError as error:
        raise unsavable([name], tensor, f"a view that torch cannot copy ({error})") from error
