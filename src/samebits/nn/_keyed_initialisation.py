"""The draws of a module's initialisation, keyed by the tensor that they fill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from samebits._context import Words
from samebits.errors import UnimplementedError
from samebits.nn._layer_keys import plain_path
from samebits.random import _int_keys as int_keys
from samebits.random._process import generator_states

_PARAMETER = int_keys.as_uint64("parameter")
_MODULE = int_keys.as_uint64("module")


class OwnedTensors:
    """The parameters and buffers of a model, found by their memory. `names`: of the parameters."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        parameters, buffers = _by_path(model.named_parameters()), _by_path(model.named_buffers())
        self.names: set[str] = set()
        self._kept = {name: (tensor, tensor.data_ptr()) for name, tensor in parameters.items()}
        self._by_storage: dict[int, list[tuple[int, int, str]]] = {}
        for name, tensor in (*parameters.items(), *buffers.items()):
            if self.name(tensor) is None and tensor.numel():  # else empty, or tied by its memory
                start = int(tensor.storage_offset())
                self._by_storage.setdefault(_storage(tensor), []).append(
                    (start, start + _extent(tensor), name)
                )
                self.names |= {name} & parameters.keys()

    def name(self, tensor: torch.Tensor) -> str | None:
        """Returns the (first) name of the parameter or buffer that `tensor` is, or is a view of; None if there is none."""
        at = tensor.storage_offset()
        for start, end, name in self._by_storage.get(_storage(tensor), ()):
            if start <= at < end:
                return name
        return None

    def replaced_names(self) -> set[str]:
        """Returns the names of parameters that have been replaced, or moved in memory."""
        now = _by_path(self._model.named_parameters())
        return {
            name
            for name, (tensor, pointer) in self._kept.items()
            if now.get(name) is not tensor or tensor.data_ptr() != pointer
        }


class KeyedDraws(TorchDispatchMode):
    """A mode in which torch's generator is filled before each draw, from a key of the tensor that it fills.

    Ops on a parameter that belongs to another path than the current module (a tied one) are skipped; so are, in a
    rehearsal, all that would change a parameter or buffer.
    """

    def __init__(self, root: Words, owned: OwnedTensors, *, rehearsal: bool) -> None:
        super().__init__()
        self.touched: set[str] = set()
        self._root = root
        self._owned = owned
        self._rehearsal = rehearsal
        self._path = ""
        self._counts: Counter[tuple[int, str]] = Counter()

    def enter(self, path: str) -> None:
        """Begins the initialisation of the module at `path`; NumPy and Python draw from a key of the path."""
        self._path = plain_path(path)
        self._fill(_MODULE, self._path)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Fills the generator if `func` draws, and skips writes that must not happen."""
        kwargs = kwargs or {}
        written = list(_written_tensors(func, args, kwargs))
        names = [name for tensor in written if (name := self._owned.name(tensor)) is not None]
        own = [name for name in names if self._owns(name)]
        self.touched.update(own)
        if names and (self._rehearsal or not own):
            return _skipped_result(func, written, self._path)
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            self._fill(*((_PARAMETER, own[0]) if own else (_MODULE, self._path)))
        return func(*args, **kwargs)

    def _owns(self, name: str) -> bool:
        return not self._path or name.startswith(f"{self._path}.")

    def _fill(self, kind: int, name: str) -> None:
        number = self._counts[kind, name]
        self._counts[kind, name] += 1
        # A generator that was filled counts as seeded: the guard of op determinism must not refuse it.
        generator_states.fill(int_keys.fold(self._root, kind, name, number), initial_seed=0)


def _by_path(tensors: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {plain_path(path): tensor for path, tensor in tensors}


def _written_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors that an op writes to."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor


def _skipped_result(func: Any, written: list[torch.Tensor], path: str) -> torch.Tensor | None:
    """Returns the result of an in-place op that is skipped."""
    if len(func._schema.returns) > 1:
        raise UnimplementedError(
            f"samebits.nn.reset_parameters: initialising {path or 'the model'} calls {func}, which changes a parameter or "
            "buffer and also computes something else. Initialise in steps: torch.nn.init, or in-place draws and copy_."
        )
    return written[0] if func._schema.returns else None


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _extent(tensor: torch.Tensor) -> int:
    """Returns the number of elements from the first to the last of a tensor, in memory."""
    return 1 + sum(
        int(size - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
