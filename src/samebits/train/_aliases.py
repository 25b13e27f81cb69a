"""`run.state`, and the objects that a program held when its loop began, by all the names that it may know."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch

from samebits._dtensors import local
from samebits.errors import InvalidArgumentError
from samebits.state import _in_place
from samebits.state._attributes import Attributes
from samebits.train import _parameter_groups as parameter_groups
from samebits.train._committed_state import CommittedState, StateAliases
from samebits.train._object_states import Stateful, gradients, parameters


class RunState(dict[str, Any]):
    """`run.state`: plain values and tensors saved with the run: `run.state.best = 1.0`, `.get("best", 9)`."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"run.state.{name} was never set, or is not in the commit from which the run resumed. Set it "
                f"before the loop, in a run directory of its own, or read run.state.get({name!r}, default)."
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(dict, name):
            raise InvalidArgumentError(
                f"run.state.{name} = ...: a dict has a method of that name. Choose another."
            )
        self[name] = value

    def __delattr__(self, name: str) -> None:
        del self[name]

    def refill(
        self, saved: Mapping[str, Any], aliases: StateAliases, restored: _in_place.Restored | None = None
    ) -> None:
        """Takes the saved values: in place, but where the loop had replaced objects, as `aliases` say."""
        restored = restored or _in_place.Restored()
        restored.bind_items(saved, self, set(aliases.run_state))
        values = {name: restored.of(value) for name, value in saved.items()}
        self.clear()
        self.update(values)
        _in_place.move_to_devices(self, aliases.devices)


class Aliases:
    """The objects that the program held when its outermost loop began, and may know by other names."""

    def __init__(self) -> None:
        self._in_state, self._grads = _in_place.PlacedObjects(), _in_place.PlacedObjects()
        self._memory: dict[str, str] = {}
        """The names of parameters and buffers of modules, each with the first name of its memory."""

    def note(self, objects: Mapping[str, Stateful], run_state: RunState, made: Collection[int]) -> None:
        """Notes the objects at the beginning of a loop, but those that a resume has `made`."""
        self._in_state.note(run_state, made)
        self._grads.note(gradients(parameters(objects)), made)
        self._memory = same_memory(objects)
        for one in objects.values():
            if isinstance(one, Attributes):
                one.note_placed(made)

    def changed_memory(self, objects: Mapping[str, Stateful]) -> tuple[str, str, str] | None:
        """Returns two names that were one memory when the loop began and are "two" now, or that are "one".

        Buffers that have become one are left alone: an average may take those of its model in each step.
        """
        now, before = same_memory(objects), self._memory
        trained = {path for path, _ in parameter_groups.named_parameters(objects, every=True)}
        for path in [path for path in before if path in now]:
            first, since = before[path], now[path]
            if first in now and since != now[first]:
                return first, path, "two"
            if since in before and first != before[since] and {path, since} <= trained:
                return since, path, "one"
        return None

    def keeps_gradient(self, path: str) -> bool:
        """Returns True for a gradient that a resume fills in place."""
        return self._grads.has((path,))

    def state(self, saved: CommittedState, objects: Mapping[str, Stateful]) -> StateAliases:
        """Returns for a commit of `saved` the places where other objects are by now, and the devices."""
        return StateAliases(
            run_state=self._in_state.replaced(),
            grads=self._grads.replaced(saved.grads),
            devices=_in_place.devices_in(saved.run_state),
            optimizers=shared_with_parameters(objects),
        )


def same_memory(objects: Mapping[str, Stateful]) -> dict[str, str]:
    first: dict[Any, str] = {}
    found: dict[str, str] = {}
    for name, thing in objects.items():
        named = (
            [*thing.named_parameters(remove_duplicate=False), *thing.named_buffers(remove_duplicate=False)]
            if isinstance(thing, torch.nn.Module)
            else []
        )
        for path, one in named:
            is_plain = type(one) in (torch.Tensor, torch.nn.Parameter) and one.layout is torch.strided
            if is_plain and one.numel():
                key = one.data_ptr(), one.dtype, one.shape, one.stride()
                found[f"{name}.{path}"] = first.setdefault(key, f"{name}.{path}")
    return found


def shared_with_parameters(objects: Mapping[str, Stateful]) -> list[tuple[str, int, str]]:
    """Returns where a state of an optimizer is the memory of its parameter, as after SAM's `p.data = old`."""
    return [
        (name, number, key)
        for name, number, parameter, state in _optimizer_states(objects)
        for key, value in state.items()
        if isinstance(value, torch.Tensor) and value is not parameter and _is_same_memory(value, parameter)
    ]


def share_again(objects: Mapping[str, Stateful], shared: Iterable[tuple[str, int, str]]) -> None:
    """Puts the memory of the parameters there again."""
    for name, number, parameter, state in _optimizer_states(objects):
        for key in [key for one, at, key in shared if (one, at) == (name, number) and key in state]:
            state[key] = parameter.detach()


def _optimizer_states(
    objects: Mapping[str, Stateful],
) -> Iterator[tuple[str, int, torch.Tensor, dict[str, Any]]]:
    for name, thing in objects.items():
        if isinstance(thing, torch.optim.Optimizer):
            trained = (one for group in thing.param_groups for one in group["params"])
            yield from ((name, at, one, thing.state.get(one, {})) for at, one in enumerate(trained))


def _is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    one, other = local(one), local(other)
    if one.layout is not torch.strided or not one.numel() or one.data_ptr() != other.data_ptr():
        return False
    return (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
