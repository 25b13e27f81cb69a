"""Checks before a commit that no two values share memory in a way that a resume would not restore.

One tensor under two names is one again. Two views of the same bytes are that only where a resume fills the
program's own objects in place: in modules, and where an adapter's target, or a gradient, still is the object
of before the loop. Elsewhere each would get memory of its own, so they are refused.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits._dtensors import local
from samebits._objects.memory import are_near, span
from samebits.checkpoint._classes import items_of
from samebits.errors import UnsavableStateError
from samebits.state._attributes import Attributes
from samebits.state._in_place import Path
from samebits.train._aliases import Aliases, shared_with_parameters
from samebits.train._committed_state import CommittedState

_MADE, _FILLED, _OPTIMIZER, _OBJECT = "made anew", "filled in place", "an optimizer's", "an object's"
_OURS = {_MADE, _FILLED}
"""Where a resume puts one object under all names of a saved one."""


class _CommittedValue(NamedTuple):
    """A tensor or an array of a commit, where it is, and how a resume restores it."""

    begin: int
    end: int
    name: str
    role: str
    value: Any

    def sees_same(self, other: _CommittedValue) -> bool:
        """Returns True if a resume makes one object of both."""
        one, two = self.value, other.value
        if one is two or not (isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor)):
            return one is two
        kinds = [(t.dtype, t.shape, t.stride(), t.is_conj(), t.is_neg()) for t in (one, two)]
        return kinds[0] == kinds[1] and self[:2] == other[:2]


def check_memory(saved: CommittedState, objects: Mapping[str, Any], aliases: Aliases) -> None:
    """Raises `UnsavableStateError` for a value that a resume would not restore as it is, by its names."""
    if (changed := aliases.changed_memory(objects)) is not None:
        raise _changed(*changed)
    found = list(_values(saved, objects, aliases))
    for one in found:
        if one.role is _MADE:
            _check_kind(one)
    placed = sorted((one for one in found if one.begin < one.end), key=lambda one: one[:2])
    widest = before = None
    lost: list[tuple[_CommittedValue, _CommittedValue]] = []
    for one in placed:
        near = {id(other): other for other in (widest, before) if other is not None}.values()
        lost += [(one, other) for other in near if one.begin < other.end and _is_lost(one, other)]
        widest = one if widest is None or one.end > widest.end else widest
        before = one
    if lost:  # the first in the state, wherever its memory is
        order = {id(one): number for number, one in enumerate(found)}
        raise _refusal(*min(lost, key=lambda pair: min(order[id(one)] for one in pair)))


def _values(saved: CommittedState, objects: Mapping[str, Any], aliases: Aliases) -> Iterator[_CommittedValue]:
    for path, value in _leaves(saved.run_state):
        yield _value("run.state", path, _MADE, value)
    shared = {(name, ("state", number, key)) for name, number, key in shared_with_parameters(objects)}
    for name, state in saved.objects.items():
        thing = objects[name]
        if isinstance(thing, Attributes):
            for (first, *rest), value in _leaves(state["values"]):
                role = _FILLED if thing.keeps((first, *rest)) else _MADE
                label = f"{name}{'' if first.startswith('[') or not first else '.'}{first}"
                yield _value(label, tuple(rest), role, value)
        else:
            role = _OPTIMIZER if isinstance(thing, torch.optim.Optimizer) else _OBJECT
            for path, value in _leaves(state):
                if (name, path) not in shared:
                    yield _value(name, path, role, value)
    for (name, *rest), value in _leaves(saved.grads):
        yield _value(f"{name}.grad", tuple(rest), _FILLED if aliases.keeps_gradient(name) else _MADE, value)
    for part in (saved.buffers, saved.optimizer_only):
        for path, value in _leaves(part):
            yield _value(path[0], path[1:], _OBJECT, value)


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, item in items_of(value):
        if isinstance(item, torch.Tensor | np.ndarray):
            yield (*path, key), item
        else:
            yield from _leaves(item, (*path, key))


def _value(owner: str, path: Path, role: str, value: Any) -> _CommittedValue:
    begin = end = 0
    value = local(value) if isinstance(value, torch.Tensor) else value
    if isinstance(value, np.ndarray) or value.layout is torch.strided:
        at = value.__array_interface__["data"][0] if isinstance(value, np.ndarray) else value.data_ptr()
        begin, end = (at + side for side in span(value))
    name = "".join(
        f".{key}" if isinstance(key, str) and key.isidentifier() and not at else f"[{key!r}]"
        for at, key in enumerate(path)
    )
    return _CommittedValue(begin, end, owner + name.replace("['", '["').replace("']", '"]'), role, value)


def _is_lost(one: _CommittedValue, other: _CommittedValue) -> bool:
    roles = {one.role, other.role}
    if roles <= _OURS and one.sees_same(other):
        return False
    return _MADE in roles or roles == {_OPTIMIZER, _OBJECT}


def _refusal(one: _CommittedValue, other: _CommittedValue) -> UnsavableStateError:
    one, other = (one, other) if one.role in {_MADE, _OPTIMIZER} else (other, one)
    clone = f"{one.name} = {one.name}.{'copy' if isinstance(one.value, np.ndarray) else 'clone'}()"
    if other.role in _OURS:
        return UnsavableStateError(
            f"{one.name} and {other.name} share memory (one is a view of the other): after a resume they "
            f"would be two copies, which change alone. Keep one of them, or a copy: {clone}"
        )
    return UnsavableStateError(
        f"{one.name} is the memory of {other.name}: it changes with it now, and would be a copy after a "
        f"resume. Keep a copy: {clone}, or copy.deepcopy(model.state_dict())."
    )


def _check_kind(one: _CommittedValue) -> None:
    value, cure = one.value, f"{one.name} = {one.name}."
    what = ""
    if isinstance(value, np.ndarray):
        if value.flags.writeable and _is_in_file(value):
            what, cure = "a part of a file in memory, which a resume would not change", f"{cure}copy()"
        elif not value.flags.forc and not are_near(value.shape, value.strides, value.itemsize):
            what, cure = "a view with wide gaps", f"{cure}copy()"
    elif value.layout is torch.strided:
        if value.requires_grad:
            what, cure = "a tensor that requires grad, which a commit cannot save", f"{cure}detach()"
        elif value.is_conj() or value.is_neg():
            what, cure = "a lazy conjugate or negation", f"{cure}resolve_conj().resolve_neg()"
        elif not are_near(value.shape, value.stride()):
            what, cure = "a view with wide gaps", f"{cure}clone(memory_format=torch.contiguous_format)"
    if what:
        raise UnsavableStateError(f"{one.name} is {what}. Store {cure}")


def _is_in_file(array: Any) -> bool:
    while array is not None and not isinstance(array, np.memmap | mmap.mmap):
        array = getattr(array, "base", None)
    return array is not None


def _changed(one: str, other: str, number: str) -> UnsavableStateError:
    before = "one" if number == "two" else "two"
    return UnsavableStateError(
        f"{one} and {other} were {before} in memory when the loop began, and are {number} now; a resumed run "
        f"would have {before} again. Tie or part them before the run; or begin with two, and as long as they "
        "are to be equal copy one to the other in each step: other.data.copy_(one.data)."
    )
