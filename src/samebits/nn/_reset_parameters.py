"""`reset_parameters`: initial weights that are a function of (key, name), not of the order in which a model was built."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from samebits._context import Words
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.nn._keyed_initialisation import KeyedDraws, OwnedTensors
from samebits.random import _int_keys as int_keys
from samebits.random._process import generator_states

_INITIAL = int_keys.as_uint64("samebits.nn.reset_parameters")


def reset_parameters(model: torch.nn.Module, key: torch.Tensor, *, keep: Collection[str] = ()) -> None:
    """Initialises every parameter anew, by its module's own scheme, from a key of its full name.

    Runs `reset_parameters` (or `_reset_parameters`) of every module that has one, children first, as construction does.
    Draws into a parameter come from (key, the parameter's name, number of the draw on it); other draws (the scratch
    tensors of orthogonal_ and sparse_, NumPy, Python) from (key, the module's path, ...). So a parameter's weights do
    not change when modules are built in another order, added, or removed. Buffers are reset by the same methods. A tied
    parameter is keyed by its first name, and is initialised by the modules on that path only. The caller's generators
    are restored.

    Args:
        model: a module on real devices (after `to_empty`, not on "meta"), before it is parametrized.
        key: uint64 of shape (2,), as of `samebits.random.key(1)`.
        keep: full names of parameters that may stay as they are.

    Every method runs twice: first in a rehearsal, in which no parameter and no buffer changes, and which finds the
    errors below. A method that fills other modules' parameters through scratch tensors draws these by its own path.

    Raises:
        InvalidArgumentError: no scheme sets some parameter (and `keep` does not name it), a parameter is lazy or on
            "meta", `keep` names nothing, or `key` is no key. Nothing is changed then.
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
            f"samebits.nn.reset_parameters: keep names no parameter of the model: {', '.join(sorted(unknown))}."
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
    "reset_parameters(self); or, where the value is not random, name it in keep=[...]. (Of a parametrized module, reset "
    "first and parametrize afterwards.)"
)


def _run(
    schemes: list[tuple[str, Callable[[], object]]], root: Words, owned: OwnedTensors, *, rehearsal: bool
) -> set[str]:
    """Runs all schemes; returns the names of the parameters that they set. A rehearsal changes none of them."""
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
