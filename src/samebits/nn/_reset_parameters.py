"""`reset_parameters`: initial weights from (key, name), not from the order in which a model was built."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from samebits._context import Words
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.nn._layer_keys import plain_path
from samebits.random import _int_keys as int_keys
from samebits.random._process import generator_states

# The draws of a module's initialisation, keyed by the tensor that they fill.


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
        """Returns the (first) name of the parameter or buffer that `tensor` is or views; None for others."""
        at = tensor.storage_offset()
        for start, end, name in self._by_storage.get(_storage(tensor), ()):
            if start <= at < end:
                return name
        return None

    def replaced_names(self) -> set[str]:
        now = _by_path(self._model.named_parameters())
        return {
            name
            for name, (tensor, pointer) in self._kept.items()
            if now.get(name) is not tensor or tensor.data_ptr() != pointer
        }


class KeyedDraws(TorchDispatchMode):
    """A mode in which torch's generator is filled before each draw, from a key of the tensor that it fills.

    Ops on a parameter that belongs to another path than the current module (a tied one) are skipped; so are,
    in a rehearsal, all that would change a parameter or buffer.
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
        own = [name for name in names if not self._path or name.startswith(f"{self._path}.")]
        self.touched.update(own)
        if names and (self._rehearsal or not own):
            return _skipped_result(func, written, self._path)
        if torch.Tag.nondeterministic_seeded in func.tags and kwargs.get("generator") is None:
            self._fill(*((_PARAMETER, own[0]) if own else (_MODULE, self._path)))
        return func(*args, **kwargs)

    def _fill(self, kind: int, name: str) -> None:
        number = self._counts[kind, name]
        self._counts[kind, name] += 1
        # A generator that was filled counts as seeded: the guard of op determinism must not refuse it.
        generator_states.fill(int_keys.fold(self._root, kind, name, number), initial_seed=0)


def _by_path(tensors: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {plain_path(path): tensor for path, tensor in tensors}


def _written_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for tensor in value if isinstance(value, list | tuple) else (value,):
            if isinstance(tensor, torch.Tensor):
                yield tensor


def _skipped_result(func: Any, written: list[torch.Tensor], path: str) -> torch.Tensor | None:
    if len(func._schema.returns) > 1:
        raise UnimplementedError(
            f"samebits.nn.reset_parameters: initialising {path or 'the model'} calls {func}, which changes a "
            "parameter or buffer and also computes something else. Initialise in steps: torch.nn.init, or "
            "in-place draws and copy_."
        )
    return written[0] if func._schema.returns else None


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _extent(tensor: torch.Tensor) -> int:
    """Returns the number of elements from the first to the last of a tensor, in memory."""
    return 1 + sum(
        int(size - 1) * int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


_INITIAL = int_keys.as_uint64("samebits.nn.reset_parameters")


def reset_parameters(model: torch.nn.Module, key: torch.Tensor, *, keep: Collection[str] = ()) -> None:
    """Initialises every parameter anew, by its module's own scheme, from a key of its full name.

    Runs `reset_parameters` (or `_reset_parameters`) of every module that has one, children first, as
    construction does. Draws into a parameter come from (key, the parameter's name, number of the draw on it);
    other draws (the scratch tensors of orthogonal_ and sparse_, NumPy, Python) from (key, the module's path,
    ...). So a parameter's weights do not change when modules are built in another order, added, or removed.
    Buffers are reset by the same methods. A tied parameter is keyed by its first name, and is initialised by
    the modules on that path only. The caller's generators are restored.

    Args:
        model: a module on real devices (after `to_empty`, not on "meta"), before it is parametrized.
        key: uint64 of shape (2,), as of `samebits.random.key(1)`.
        keep: full names of parameters that may stay as they are.

    Every method runs twice: first in a rehearsal, in which no parameter and no buffer changes, and which
    finds the errors below. Scratch tensors for other modules' parameters are drawn by the method's own path.

    Raises:
        InvalidArgumentError: no scheme sets some parameter (and `keep` does not name it), a parameter is lazy
            or on "meta", `keep` names nothing, or `key` is no key. Nothing is changed then.
        UnimplementedError: a module is TorchScript.

    Example:
        >>> small = torch.nn.Sequential(torch.nn.Linear(2, 2))
        >>> large = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        >>> for model in small, large:
        ...     samebits.nn.reset_parameters(model, samebits.random.key(1))
        >>> torch.equal(small[0].weight, large[0].weight)
        True
    """
    root = int_keys.fold(int_keys.from_tensor(key), _INITIAL)
    _check(model)
    owned = OwnedTensors(model)
    unknown = {*keep} - owned.names
    if unknown:
        raise InvalidArgumentError(
            "samebits.nn.reset_parameters: keep names no parameter of the model: "
            f"{', '.join(sorted(unknown))}."
        )
    schemes = [
        (path, scheme) for path, part in _children_first(model) if (scheme := _scheme(part)) is not None
    ]
    with generator_states.preserve_states(), torch.no_grad():
        with _undo_replacements(model):
            missing = owned.names - _run(schemes, root, owned, rehearsal=True) - {*keep}
        if missing:
            raise InvalidArgumentError(_MISSING.format(", ".join(sorted(missing))))
        _run(schemes, root, owned, rehearsal=False)


_MISSING = (
    "samebits.nn.reset_parameters: no reset_parameters of a module sets {}. Give its module a method "
    "reset_parameters(self); or, where the value is not random, name it in keep=[...]. (Of a parametrized "
    "module, reset first and parametrize afterwards.)"
)


def _run(
    schemes: list[tuple[str, Callable[[], object]]], root: Words, owned: OwnedTensors, *, rehearsal: bool
) -> set[str]:
    """Runs all schemes; returns the names of the parameters that they set. A rehearsal changes none."""
    draws = KeyedDraws(root, owned, rehearsal=rehearsal)
    for path, scheme in schemes:
        draws.enter(path)
        with draws:
            scheme()
    return draws.touched | owned.replaced_names()


def _children_first(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yields every module once, by its first path, after its children."""
    first = {part: path for path, part in model.named_modules()}

    def walk(part: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
        for child in part.children():
            yield from walk(child)
        if part in first:
            yield first.pop(part), part

    return walk(model)


def _scheme(part: torch.nn.Module) -> Callable[[], object] | None:
    """Returns the method that initialises a module, if it can be called without arguments."""
    for name in ("reset_parameters", "_reset_parameters"):
        if not (name in vars(part) or hasattr(type(part), name)):  # a compiled wrapper passes on its module's
            continue
        method = getattr(part, name)
        if callable(method) and not any(
            p.default is p.empty and p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}
            for p in inspect.signature(method).parameters.values()
        ):
            return method
    return None


def _check(model: torch.nn.Module) -> None:
    for path, part in model.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            raise UnimplementedError(
                f"samebits.nn.reset_parameters: {path or 'the model'} is TorchScript. Reset before scripting."
            )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise InvalidArgumentError(
                f"samebits.nn.reset_parameters: {name} is lazy; run one batch through the model first."
            )
        if tensor.is_meta:
            raise InvalidArgumentError(
                f"samebits.nn.reset_parameters: {name} is on 'meta'; call model.to_empty(device=...) first."
            )


@contextmanager
def _undo_replacements(model: torch.nn.Module) -> Iterator[None]:
    """Restores the objects of parameters and buffers that a scheme replaced; their values are not touched."""
    slots = [(slot, dict(slot)) for part in model.modules() for slot in (part._parameters, part._buffers)]
    data = [(tensor, tensor.data) for _, held in slots for tensor in held.values() if tensor is not None]
    try:
        yield
    finally:
        for slot, held in slots:
            slot.clear()
            slot.update(held)  # type: ignore[arg-type]
        for tensor, before in data:
            if tensor.data_ptr() != before.data_ptr():
                tensor.data = before
