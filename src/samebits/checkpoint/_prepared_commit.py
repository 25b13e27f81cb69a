"""A commit in memory: its manifest and the tensors of its file, ready for a disk or for the memory of the writer process."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits._digest import hash_threads
from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._async_writer.state_layout import LayoutError, StateLayout
from samebits.checkpoint._codec import encode
from samebits.checkpoint._manifest import canonical_json, check_plain, manifest_template
from samebits.checkpoint._tensor_layout import FileLayout
from samebits.checkpoint._unsavable import unsavable
from samebits.checkpoint._writer.commit_folder import LARGE
from samebits.checkpoint._writer.manifest_template import ManifestTemplate, digest


class CommitMetadata(NamedTuple):
    """The content of a manifest besides the state; mappings are plain JSON: string keys, lists, finite numbers."""

    step: int
    position: Mapping[str, Any]
    finished: bool
    program: Mapping[str, Any]
    environment: Mapping[str, Any]
    rolling: str | None = None
    value: float | None = None


@dataclass(frozen=True)
class PreparedCommit:
    """The content of a commit's files. The tensors are those of the state: they must not change before they are written."""

    template: ManifestTemplate
    layout: FileLayout
    """The same object for two commits whose files have the same form."""
    sources: Sequence[torch.Tensor | np.ndarray]
    """In the order of the file."""

    @property
    def on_cuda(self) -> bool:
        """True if a tensor is on a GPU."""
        return any(isinstance(source, torch.Tensor) and source.is_cuda for source in self.sources)

    @cached_property
    def tensors(self) -> list[memoryview]:
        """The bytes of each tensor; they share memory with it where they can."""
        return [_raw(name, source).data for name, source in zip(self.layout.names, self.sources, strict=True)]

    def digests(self) -> list[str]:
        """Returns the digest of each tensor, of a large state by several threads."""
        with hash_threads() as pool:
            run = pool.map if self.layout.size >= LARGE else map
            return list(run(digest, self.tensors))

    @property
    def nbytes(self) -> int:
        """Size of both files in bytes, at most."""
        return self.layout.size + self.template.size


class CommitPreparer:
    """Prepares the commits of a run; the form that a state has in common with the one before is not computed again."""

    def __init__(self) -> None:
        self._layout: StateLayout | None = None
        self._layouts_fit = True
        self._texts: dict[str, tuple[Mapping[str, Any], str]] = {}

    def prepare(self, state: Mapping[str, Any], metadata: CommitMetadata) -> PreparedCommit:
        """Returns the commit of `state`. Raises UnsavableStateError: the state holds something that cannot be saved."""
        check_plain(metadata.position, ("position",))
        layout, sources, tree = self._flatten(dict(state))
        template = manifest_template(
            layout, step=operator.index(metadata.step), finished=bool(metadata.finished), tree=tree,
            position=canonical_json(metadata.position), program=self._text("program", metadata.program),
            environment=self._text("environment", metadata.environment), rolling=metadata.rolling, value=metadata.value,
        )  # fmt: skip
        return PreparedCommit(template, layout, sources)

    def _flatten(self, state: dict[str, Any]) -> tuple[FileLayout, Sequence[torch.Tensor | np.ndarray], str]:
        """Returns the layout of the file, its tensors, and the plain half of the state as JSON."""
        if self._layouts_fit:
            try:
                return self._flatten_by_layout(state)
            except LayoutError:
                self._layouts_fit = False
        tree, tensors = encode(state)
        layout = FileLayout({name: safetensors_file.describe(tensor) for name, tensor in tensors.items()})
        return layout, [tensors[name] for name in layout.names], canonical_json(tree)

    def _flatten_by_layout(self, state: dict[str, Any]) -> tuple[FileLayout, list[Any], str]:
        for layout in (self._layout, None):
            known = StateLayout(state) if layout is None else layout
            values = known.read(state)
            tree = None if values is None else known.text(values)
            if values is not None and tree is not None:
                self._layout = known
                return known.file_layout, [values[number] for number in known.sources], tree
        raise LayoutError

    def _text(self, name: str, fields: Mapping[str, Any]) -> str:
        """Returns the canonical JSON of plain fields; a caller changes them by passing another mapping."""
        known, text = self._texts.get(name, (None, ""))
        if known is not fields and known != fields:
            check_plain(fields, (name,))
            text = canonical_json(fields)
            self._texts[name] = fields, text
        return text


def _raw(name: str, source: torch.Tensor | np.ndarray) -> np.ndarray:
    if isinstance(source, np.ndarray):
        return np.array(source, order="C").reshape(-1).view(np.uint8)
    try:
        return safetensors_file.raw(source)
    except NotImplementedError as error:
        raise unsavable([name], source, f"a view that torch cannot copy ({error})") from error
