"""The state of a run in a commit: its keys and their types, and how it is gathered, checked and restored.

The tree of a commit has the fields of `CommittedState` by their names, in this order, and so have its parts.
The oldest have no `param_groups`; commits of before 2026-11-28 have `in_hand` in the place of `aliases`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch.nn.parallel import DistributedDataParallel

from samebits import _digest as digest
from samebits._context import Position
from samebits._dtensors import is_dtensor
from samebits.state import _in_place
from samebits.state._attributes import Attributes
from samebits.train import _object_states as object_states
from samebits.train import _parameter_groups as parameter_groups
from samebits.train._loop.entry_state import EntryState, decoded
from samebits.train._object_states import Stateful

Part = TypeVar("Part")


@dataclass(kw_only=True)
class StateAliases:
    """The places where a loop has put other objects than those it began with, and the devices of values."""

    run_state: list[_in_place.Path] = field(default_factory=list)
    grads: list[_in_place.Path] = field(default_factory=list)
    devices: list[tuple[_in_place.Path, str]] = field(default_factory=list)
    """Of values of `run.state` that are not on the CPU."""
    optimizers: list[tuple[str, int, str]] = field(default_factory=list)
    """States of optimizers that are the memory of their parameter."""


@dataclass(kw_only=True)
class LoopEnd:
    """An outermost loop that is over."""

    epoch: int
    """The next one."""
    stopped: bool
    """True if it ended before its last epoch."""
    loader: Any
    ordinal: int | None = None
    """The number of its loader among those that the program has made since the run; of `run.epochs` alone."""
    by_epoch: bool = False
    """True for a loop of `run.epochs`; no key of a commit."""


@dataclass(kw_only=True)
class LoopPlace:
    """The outermost loop that is under way."""

    name: str
    epoch: int
    batch_index: int
    by_epoch: bool = False
    loader: Any = None
    entered_with: EntryState | None = None
    """The state at the begin of its epoch (`run.epochs`)."""
    ended_with: EntryState | None = None
    """The state at the end of the loop before it."""
    anew: list[str] = field(default_factory=list)
    """The names of objects that bodies of its epochs have added."""


@dataclass(kw_only=True)
class LoopsState:
    """The loops of a run, and the number of its next step."""

    step: int = 0
    done: dict[str, LoopEnd] = field(default_factory=dict)
    current: LoopPlace | None = None


@dataclass(kw_only=True)
class ValidationState:
    """The state between two batches of a validation, in a commit of the boundary before."""

    loop: str
    step: int
    name: str
    batch: int
    state: CommittedState

    @classmethod
    def at(cls, position: Position, state: CommittedState) -> ValidationState:
        name, batch = position.name, position.phase_batch
        return cls(loop=position.loop, step=position.step, name=name, batch=batch, state=state)

    def is_at(self, first: Position) -> bool:
        return (self.loop, self.step, self.name) == (first.loop, first.step, first.name)


@dataclass(kw_only=True)
class CommittedState:
    """The state of a run, or of some objects alone, by their names or by paths that begin with these."""

    types: dict[str, str]
    objects: dict[str, Any]
    """The state_dict of each."""
    grads: dict[str, Any]
    """Gradients that are alive between two steps; a sparse one as its tensors."""
    requires_grad: dict[str, bool]
    param_groups: dict[str, parameter_groups.Groups] = field(default_factory=dict)
    optimizer_only: dict[str, torch.Tensor]
    """Parameters that only an optimizer knows."""
    training: dict[str, list[bool]]
    """The train/eval mode of each module in a module."""
    buffers: dict[str, dict[str, torch.Tensor]]
    """Those that are registered as not persistent."""
    forward_syncs: dict[str, bool] = field(default_factory=dict)
    """For each DistributedDataParallel, True if it is about to broadcast rank 0's buffers."""
    run_state: dict[str, Any] = field(default_factory=dict)
    aliases: StateAliases = field(default_factory=StateAliases)
    loops: LoopsState | None = None
    inside: ValidationState | None = None

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> CommittedState:
        """Returns the state of a commit's tree that `wrong_parts` takes, or of one with some keys alone."""
        found = dict(tree)
        if "aliases" in tree:
            found["aliases"] = _part(StateAliases, tree["aliases"])
        elif "in_hand" in tree:
            found["aliases"] = _of_before(tree["in_hand"], tree["run_state"])
        if "loops" in tree:
            found["loops"] = _loops(tree["loops"])
        if "inside" in tree:
            inside = tree["inside"]
            state = cls.of({**inside["state"], "run_state": inside["run_state"]})
            found["inside"] = _part(ValidationState, {**inside["at"], "state": state})
        return _part(cls, found)

    def to_dict(self) -> dict[str, Any]:
        tree = self.objects_to_dict()
        tree |= {"run_state": self.run_state, "aliases": _keys(self.aliases, "optimizers")}
        if self.loops is not None:
            current = self.loops.current
            tree["loops"] = {
                "step": self.loops.step,
                "done": {name: _end(one) for name, one in self.loops.done.items()},
                "current": current and _keys(current, "by_epoch", "entered_with", "ended_with", "anew"),
            }
        if self.inside is not None:
            at = _keys(self.inside)
            state = at.pop("state")
            tree["inside"] = {"at": at, "state": state.objects_to_dict(), "run_state": state.run_state}
        return tree

    def objects_to_dict(self) -> dict[str, Any]:
        tree = {name: getattr(self, name) for name in OF_OBJECTS}
        return tree if self.forward_syncs else {name: tree[name] for name in OF_OBJECTS[:-1]}

    def part_of(self, names: Collection[str]) -> CommittedState:
        """Returns the state with what is gathered of these objects alone."""
        parts = {part: getattr(self, part) for part in OF_OBJECTS}
        return replace(self, **{
            part: {key: one for key, one in found.items() if key.split(".")[0] in names}
            for part, found in parts.items()
        })  # fmt: skip

    def entries(self) -> list[dict[str, Any]]:
        current = None if self.loops is None else self.loops.current
        found = [] if current is None else [current.entered_with, current.ended_with]
        return [{**decoded(one), "loops": vars(LoopsState())} for one in found if one is not None]


OF_OBJECTS = (
    "types", "objects", "grads", "requires_grad", "param_groups", "optimizer_only", "training", "buffers",
    "forward_syncs",
)  # fmt: skip
"""The keys of what is gathered of objects; the last is left out if it is empty."""
_LATER = {"param_groups", "forward_syncs"}
_IN_EACH = (*(one for one in OF_OBJECTS if one not in _LATER), "run_state", "aliases", "loops")


def without_objects(tree: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {**tree, "objects": {name: one for name, one in tree["objects"].items() if name not in names}}


def _keys(record: Any, *left_out: str) -> dict[str, Any]:
    """Returns the keys of a part; those of `left_out` where they are empty."""
    return {name: one for name, one in vars(record).items() if name not in left_out or one}


def _end(loop: LoopEnd) -> dict[str, Any]:
    tree = _keys(loop)
    if not tree.pop("by_epoch"):
        del tree["ordinal"]
    return tree


def _part(kind: type[Part], tree: Mapping[str, Any]) -> Part:
    return kind(**{one.name: tree[one.name] for one in fields(kind) if one.name in tree})  # type: ignore[arg-type]


def _loops(tree: Mapping[str, Any]) -> LoopsState:
    done = {name: _part(LoopEnd, {**one, "by_epoch": "ordinal" in one}) for name, one in tree["done"].items()}
    current = tree["current"]
    return LoopsState(step=tree["step"], done=done, current=current and _part(LoopPlace, current))


def _of_before(old: Mapping[str, Any], run_state: dict[str, Any]) -> StateAliases:
    """Returns the aliases of a commit of before, which has the places that are still those of the begin
    (`kept`), and pairs of places with the `same` object; what lists hold was replaced.
    """
    for path, first in old["same"]:
        _in_place.value_at(run_state, path[:-1])[path[-1]] = _in_place.value_at(run_state, first)
    placed = _in_place.PlacedObjects()
    placed.note(run_state)
    replaced = [path for path in placed.paths() if path not in old["kept"]]
    return StateAliases(run_state=replaced, devices=old.get("devices", []))


def lacking(tree: Mapping[str, Any]) -> list[str]:
    """Returns the keys that each commit of a run has, and this tree has not."""
    has = {name for name, one in tree.items() if isinstance(one, dict)}
    return [name for name in _IN_EACH if name not in has and (name != "aliases" or "in_hand" not in has)]


def wrong_parts(tree: Mapping[str, Any]) -> list[str]:
    """Returns the keys of a tree with all of them whose values no run writes."""
    names, paths, modules = tree["objects"].keys(), tree["grads"].keys(), tree["training"].keys()
    current = tree["loops"].get("current", 0)
    right = {
        "objects": _holds(tree["objects"], object) and all(_holds(tree["objects"][one]) for one in modules),
        "types": _holds(tree["types"], str) and tree["types"].keys() == names,
        "grads": _holds(tree["grads"]) and all(map(object_states.is_gradient, tree["grads"].values())),
        "requires_grad": _holds(tree["requires_grad"], bool) and tree["requires_grad"].keys() == paths,
        "optimizer_only": _holds(tree["optimizer_only"], torch.Tensor)
        and tree["optimizer_only"].keys() <= paths,
        "training": _holds(tree["training"], list)
        and all({*map(type, modes)} <= {bool} for modes in tree["training"].values()),
        "buffers": tree["buffers"].keys() == modules
        and all(_holds(one, torch.Tensor) for one in tree["buffers"].values()),
        "run_state": _holds(tree["run_state"]),
        "aliases": "aliases" not in tree or _in_place.is_valid(tree["aliases"], tree["run_state"]),
        "loops": _is_count(tree["loops"].get("step"))
        and _holds(tree["loops"].get("done"), dict)
        and (current is None or (_holds(current) and isinstance(current.get("name"), str)))
        and all(_is_count(current.get(key)) for key in ("epoch", "batch_index") if current)
        and (not current or _are_texts(current.get("anew", []))),
    }  # fmt: skip
    return [part for part, is_right in right.items() if not is_right]


def _holds(values: Any, kind: type = object) -> bool:
    return isinstance(values, dict) and all(
        isinstance(key, str) and isinstance(value, kind) for key, value in values.items()
    )


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and {*map(type, values)} <= {str}


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def gather(
    objects: Mapping[str, Stateful], run_state: Mapping[str, Any] = MappingProxyType({})
) -> CommittedState:
    """Returns the state of all objects, with the state of modules and parameters that state_dict leaves out.

    Besides state_dict: gradients that are alive between two steps, `requires_grad`, parameters that only an
    optimizer knows, train/eval modes, and buffers that are registered as not persistent.
    """
    modules = {name: thing for name, thing in objects.items() if isinstance(thing, torch.nn.Module)}
    parameters, numbers = object_states.parameters(objects), dict[int, int]()
    saved = {
        name: thing.live_state(numbers) if isinstance(thing, Attributes) else thing.state_dict()
        for name, thing in objects.items()
    }
    return CommittedState(
        types={name: object_states.class_name(thing) for name, thing in objects.items()},
        objects=saved,
        grads=object_states.gradients(parameters),
        requires_grad={path: parameter.requires_grad for path, parameter in parameters.items()},
        param_groups=parameter_groups.names(objects),
        optimizer_only={path: p.detach() for path, p in parameters.items() if ".param_groups." in path},
        training={name: [m.training for m in module.modules()] for name, module in modules.items()},
        buffers={
            name: object_states.unsaved_buffers(module, saved[name]) for name, module in modules.items()
        },
        forward_syncs={  # not after a forward without gradients, nor under `no_sync`
            name: module.require_forward_param_sync
            for name, module in modules.items()
            if isinstance(module, DistributedDataParallel)
        },
        run_state=dict(run_state),
    )


_OF_ENTRY = "_with.tensors."
"""In the names of tensors of the states of an epoch's begin and of a loop's end."""


def layouts(objects: Mapping[str, Stateful], names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Returns the DTensors of a program by the names of a commit's tensors that take their layout.

    The state of an optimizer is made by its first step: what has a parameter's shape has its layout.
    """
    found: dict[str, torch.Tensor] = {}
    for name, thing in objects.items():
        values = thing.state_dict() if isinstance(thing, torch.nn.Module) else {}
        found |= {f"objects.{name}.{path}": one for path, one in values.items() if is_dtensor(one)}
    for path, one in object_states.parameters(objects).items():
        if is_dtensor(one):
            found |= {f"grads.{path}": one, f"optimizer_only.{path}": one}
    optimizers = {name: thing for name, thing in objects.items() if isinstance(thing, torch.optim.Optimizer)}
    for name, optimizer in optimizers.items():
        own = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        begin = f"objects.{name}.state."
        for saved in (one.split(_OF_ENTRY)[-1] for one in names) if any(map(is_dtensor, own)) else ():
            number = saved.removeprefix(begin).partition(".")[0] if saved.startswith(begin) else ""
            if number.isdecimal() and int(number) < len(own) and is_dtensor(own[int(number)]):
                found[saved] = own[int(number)]
    of_entries = {one: one.split(_OF_ENTRY)[-1] for one in names if _OF_ENTRY in one}
    return {**found, **{one: found[inner] for one, inner in of_entries.items() if inner in found}}


def restore(
    objects: Mapping[str, Stateful],
    saved: CommittedState,
    where: str,
    restored: _in_place.Restored | None = None,
    *,
    kept: Collection[str] = (),
) -> None:
    """Loads a gathered state into the objects, and checks that it was restored bit for bit.

    No tensor of `saved` is kept. `kept`: names of objects that are not loaded. Raises `RunMismatchError` when
    an object refuses its state, or does not have it afterwards.
    """
    restored = restored or _in_place.Restored()
    _bind(objects, saved, restored)
    loaded = {name: thing for name, thing in objects.items() if name not in kept}
    for name in _adapters_last(loaded):
        object_states.load(objects, name, saved.objects[name], restored, where)
    for path, parameter in object_states.parameters(objects).items():
        if path in saved.optimizer_only:
            parameter.data.copy_(saved.optimizer_only[path])
        parameter.requires_grad_(saved.requires_grad[path])
        parameter.grad = object_states.gradient(restored.of(saved.grads[path]), parameter.device)
    for name, modes in saved.training.items():
        object_states.restore_module(objects[name], modes, saved.buffers[name])
    for name, syncs in saved.forward_syncs.items():
        objects[name].require_forward_param_sync = syncs  # type: ignore[attr-defined]
    for name, thing in loaded.items():
        object_states.check_restored(name, thing, saved.objects[name], where)


def restore_changed(
    objects: Mapping[str, Stateful],
    saved: CommittedState,
    where: str,
    loaded: Mapping[str, str] | None = None,
    restored: _in_place.Restored | None = None,
    *,
    again: bool = True,
) -> list[str]:
    """Restores like `restore`, except objects that have the state: a graph built with them stays valid.

    `loaded`: digests of the states that objects of the program's own classes had once they were loaded. Those
    that still have them are not loaded. Returns the names of those that have changed; they are loaded only if
    `again`.
    """
    now = gather(objects)
    before = loaded or {}
    changed = [name for name, own in before.items() if digest.of_value(now.objects[name]) != own]
    kept = before.keys() - (changed if again else ())
    others = [part for part in OF_OBJECTS if part != "objects"]
    if any(digest.of_value(getattr(now, one)) != digest.of_value(getattr(saved, one)) for one in others):
        restore(objects, saved, where, restored, kept=kept)
        return changed
    restored = restored or _in_place.Restored()
    _bind(objects, saved, restored)
    for name in _adapters_last(objects):
        if name not in kept and digest.differing(now.objects[name], saved.objects[name]):
            object_states.load(objects, name, saved.objects[name], restored, where)
            object_states.check_restored(name, objects[name], saved.objects[name], where)
    return changed


def _bind(objects: Mapping[str, Stateful], saved: CommittedState, restored: _in_place.Restored) -> None:
    """Notes the objects that are restored in place: those in adapters' targets, and gradients."""
    for name, thing in objects.items():
        if isinstance(thing, Attributes):
            thing.bind(saved.objects[name], restored)
    now = object_states.gradients(object_states.parameters(objects))
    restored.bind_items(saved.grads, now, set(saved.aliases.grads))


def _adapters_last(objects: Mapping[str, Stateful]) -> list[str]:
    """Returns the names in the order of loading: a class of the user's may empty what it shares."""
    return sorted(objects, key=lambda name: isinstance(objects[name], Attributes))
