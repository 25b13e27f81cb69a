"""A commit in memory: its manifest and the tensors of its file, ready for a disk or the writer process."""

from __future__ import annotations

import operator
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from samebits._byte_digest import of_bytes
from samebits._digest import hash_threads
from samebits._objects.memory import span
from samebits.checkpoint import _codec as codec
from samebits.checkpoint import _safetensors_file as safetensors_file
from samebits.checkpoint._manifest import canonical_json, check_plain, manifest_template
from samebits.checkpoint._safetensors_file import FileLayout
from samebits.checkpoint._writer.commit_folder import LARGE, ManifestTemplate

_NUMBERS = {int, float, bool, NoneType}
_MAPPINGS = {dict, OrderedDict, defaultdict}
_MUTABLE = {list, set, deque, bytearray, defaultdict, Counter}
_Path = tuple[Any, ...]


class LayoutError(Exception):
    """Raised for a state with tensors where a layout cannot hold them."""


class StateLayout:
    """The layout of one state: the positions of its tensors, its plain values, and the text between them.

    The state's values are in one flat list: each container's after those of the containers before it. Raises
    UnsavableStateError for a state that cannot be saved, LayoutError for one that can, but not by a layout.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        values, paths, self._containers = _flatten(state)
        self._types = list(map(type, values))
        tuples = {number for number, kind, _ in self._containers if kind is tuple}
        self._objects = [
            number for number, kind in enumerate(self._types) if kind in codec.OBJECTS or number in tuples
        ]
        self._identities = _partition([id(values[number]) for number in self._objects])
        leaves = {path: number for number, path in enumerate(paths)}
        for number, _, _ in self._containers:
            del leaves[paths[number]]
        token = f"samebits-{uuid4().hex}-"

        def mark(path: _Path, value: Any, node: Any) -> Any:
            """Returns a mark with the number of a plain leaf; the tree of anything else."""
            number = leaves.get(path)
            if number is None or type(value) in codec.TENSORS or type(value) is np.ndarray:
                return node
            if _plain_json(value) is None:
                raise LayoutError
            return f"{token}{number}"

        encoder = codec.Encoder(mark, codec.repeated(state))
        pieces = re.split(f'"{token}([0-9]+)"', canonical_json(encoder.node(state)))
        self._text = pieces
        self._plain = [(place, int(pieces[place])) for place in range(1, len(pieces), 2)]
        self._known: list[Any] = [_UNSET] * len(self._plain)
        self._tensors = [number for number, kind in enumerate(self._types) if kind in codec.TENSORS]
        self._arrays = [number for number, kind in enumerate(self._types) if kind is np.ndarray]
        self._tensor_kinds = _tensor_kinds([values[number] for number in self._tensors])
        self._array_kinds = _array_kinds([values[number] for number in self._arrays])
        self._spans = _spans([values[number] for number in (*self._tensors, *self._arrays)])
        self._memory = self._addresses(values)
        """Addresses of the tensors and arrays of the state that was read last."""
        self._ties = _ties(self._memory, self._spans)
        self.file_layout = FileLayout(
            {name: safetensors_file.describe(tensor) for name, tensor in encoder.tensors.items()}
        )
        named: dict[str, int] = {}
        for number in (*self._tensors, *self._arrays):
            if paths[number] in encoder.names_by_path:  # else it is an array that was met before
                named.setdefault(encoder.names_by_path[paths[number]], number)
        if len(named) != len(self.file_layout.names):
            raise LayoutError
        self.sources = [named[name] for name in self.file_layout.names]
        """Flat numbers of the tensors of the file, in its order."""

    def read(self, state: dict[str, Any]) -> list[Any] | None:
        """Returns the flat values of a state with this structure; None for any other."""
        values: list[Any] = [state]
        for number, kind, keys in self._containers:
            value = values[number]
            if type(value) is not kind:
                return None
            if kind in _MAPPINGS:
                if _keys(value) != keys:
                    return None
                values += value.values()
                if kind is OrderedDict:
                    values.append(vars(value))
            else:
                if len(value) != keys:
                    return None
                values += value
        if list(map(type, values)) != self._types:
            return None
        if _partition([id(values[number]) for number in self._objects]) != self._identities:
            return None
        return values if self._same_tensors(values) else None

    def text(self, values: list[Any]) -> str | None:
        """Returns the tree of the state as canonical JSON; None when a plain list now holds a structure."""
        text, known = self._text, self._known
        for index, (place, number) in enumerate(self._plain):
            value = values[number]
            if value is known[index] and type(value) not in _MUTABLE:
                continue
            written = _plain_json(value)
            if written is None:
                return None
            text[place], known[index] = written, value
        return "".join(text)

    def _same_tensors(self, values: list[Any]) -> bool:
        try:
            if _tensor_kinds([values[number] for number in self._tensors]) != self._tensor_kinds:
                return False
            if _array_kinds([values[number] for number in self._arrays]) != self._array_kinds:
                return False
            memory = self._addresses(values)
        except (RuntimeError, NotImplementedError):  # sparse by now, or nested
            return False
        if memory != self._memory:
            self._memory = memory
            return _ties(memory, self._spans) == self._ties
        return True

    def _addresses(self, values: list[Any]) -> list[int]:
        tensors = [values[number].data_ptr() for number in self._tensors]
        return tensors + [values[number].__array_interface__["data"][0] for number in self._arrays]


_MANY, _PATHS = 1 << 15, 8
_UNSET = object()
"""A value that no state holds."""


def _flatten(state: dict[str, Any]) -> tuple[list[Any], list[_Path], list[tuple[int, type, Any]]]:
    """Returns the values, the path to each, and (number, type, keys or length) of the containers."""
    values: list[Any] = [state]
    paths: list[_Path] = [()]
    containers: list[tuple[int, type, Any]] = []
    most = _MANY
    for number, value in enumerate(values):  # it grows meanwhile
        if len(values) > most:
            if len(values) > _PATHS * len(set(map(id, values))):
                raise LayoutError  # what contains itself has paths without end
            most *= 2
        kind, path = type(value), paths[number]
        if kind in _MAPPINGS and (kind is not defaultdict or not set(map(type, value.values())) <= _NUMBERS):
            containers.append((number, kind, _keys(value)))
            values += value.values()
            paths += [(*path, key) for key in value]
            if kind is OrderedDict:
                values.append(vars(value))
                paths.append((*path, "__dict__"))
        elif (kind is list or kind is tuple) and not set(map(type, value)) <= _NUMBERS:
            containers.append((number, kind, len(value)))
            values += value
            paths += [(*path, index) for index in range(len(value))]
        if len(path) > codec.MAX_DEPTH:
            raise LayoutError
    return values, paths, containers


def _keys(mapping: Any) -> tuple[Any, ...]:
    return (mapping.default_factory, *mapping) if type(mapping) is defaultdict else tuple(mapping)


def _tensor_kinds(tensors: list[torch.Tensor]) -> list[Any]:
    return [(t.dtype, t.shape, t.stride(), t.device, t.is_conj() or t.is_neg()) for t in tensors]


def _array_kinds(arrays: list[np.ndarray]) -> list[Any]:
    return [(array.dtype, array.shape, array.strides) for array in arrays]


def _spans(values: Sequence[Any]) -> np.ndarray:
    """Returns for each tensor or array the bytes of its memory before the first element, and their number."""
    spans = [(begin, end) for begin, end in map(span, values)]
    return np.array(spans, np.int64).reshape(-1, 2)


def _ties(memory: list[int], spans: np.ndarray) -> list[tuple[int, int]]:
    """Returns the pairs of values, by their numbers, that share memory: neighbours in the order of memory."""
    begins, ends = (np.array(memory, np.int64) + side for side in spans.T)
    order = np.lexsort((ends, begins))
    begins, ends = begins[order], ends[order]
    meet = np.flatnonzero((begins[1:] < np.maximum.accumulate(ends)[:-1]) & (begins < ends)[1:])
    return sorted((int(order[at]), int(order[at + 1])) for at in meet)


def _partition(memory: list[int]) -> list[int]:
    """Returns for each address the place of its first occurrence: equal numbers mean the same memory."""
    first: dict[int, int] = {}
    return [first.setdefault(address, place) for place, address in enumerate(memory)]


def _plain_json(value: Any) -> str | None:
    """Returns the canonical JSON of a value; None for one that holds tensors, lists, dicts and the like."""
    kind = type(value)
    if kind is int and -codec.SMALL <= value < codec.SMALL:
        return repr(value)
    if kind is float and value - value == 0:
        return repr(value)
    if (kind is list or kind is tuple) and not _plain_numbers(value):
        return None if any(type(item) not in _NUMBERS for item in value) else _encode_json(value)
    if kind is list or kind is tuple:
        try:
            text = canonical_json(value)
        except ValueError:  # NaN or infinite
            return _encode_json(value)
        return text if kind is list else f'{{"tuple":{text}}}'
    return _encode_json(value)


def _plain_numbers(values: Any) -> bool:
    kinds = set(map(type, values))
    if not kinds <= _NUMBERS:
        return False
    return int not in kinds or all(
        -codec.SMALL <= value < codec.SMALL for value in values if type(value) is int
    )


def _encode_json(value: Any) -> str | None:
    encoder = codec.Encoder()
    text = canonical_json(encoder.node(value))
    return None if encoder.tensors or encoder.met_objects else text


@dataclass(frozen=True)
class PreparedCommit:
    """The content of a commit's files. Its tensors are the state's: they must not change before writing."""

    template: ManifestTemplate
    layout: FileLayout
    """The same object for two commits whose files have the same form."""
    sources: Sequence[torch.Tensor | np.ndarray]
    """In the order of the file."""

    @property
    def on_cuda(self) -> bool:
        return any(isinstance(source, torch.Tensor) and source.is_cuda for source in self.sources)

    @cached_property
    def tensors(self) -> list[memoryview]:
        """The bytes of each tensor; they share memory with it where they can."""
        return [_raw(name, source).data for name, source in zip(self.layout.names, self.sources, strict=True)]

    def digests(self) -> list[str]:
        """Returns the digest of each tensor, of a large state by several threads."""
        with hash_threads() as pool:
            run = pool.map if self.layout.size >= LARGE else map
            return list(run(of_bytes, self.tensors))

    @property
    def nbytes(self) -> int:
        """Size of both files in bytes, at most."""
        return self.layout.size + self.template.size


class CommitPreparer:
    """Prepares the commits of a run; what a state has in common with the one before is not computed again."""

    def __init__(self) -> None:
        self._layout: StateLayout | None = None
        self._layouts_fit = True
        self._texts: dict[str, tuple[Mapping[str, Any], str]] = {}

    def prepare(
        self,
        state: Mapping[str, Any],
        *,
        step: int,
        position: Mapping[str, Any],
        finished: bool,
        program: Mapping[str, Any],
        environment: Mapping[str, Any],
        rolling: str | None = None,
        value: float | None = None,
        note: str | None = None,
    ) -> PreparedCommit:
        """Returns the commit of `state`, with these fields of its manifest. Raises UnsavableStateError."""
        check_plain(position, ("position",))
        layout, sources, tree = self._flatten(dict(state))
        template = manifest_template(
            layout, step=operator.index(step), finished=bool(finished), tree=tree,
            position=canonical_json(position),
            program=self._text("program", program), environment=self._text("environment", environment),
            rolling=rolling, value=value, note=note,
        )  # fmt: skip
        return PreparedCommit(template, layout, sources)

    def _flatten(self, state: dict[str, Any]) -> tuple[FileLayout, Sequence[torch.Tensor | np.ndarray], str]:
        """Returns the layout of the file, its tensors, and the plain half of the state as JSON."""
        if self._layouts_fit:
            try:
                return self._flatten_by_layout(state)
            except LayoutError:
                self._layouts_fit = False
        tree, tensors = codec.encode(state)
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
        raise codec.unsavable([name], source, f"a view that torch cannot copy ({error})") from error
