"""The lines that save an object, tried before they are said: what `samebits.state` refuses is in no line."""

from __future__ import annotations

import re
import types
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from samebits._inspect.code_names import attributes_assigned
from samebits._inspect.user_code import is_user_type, keeps_attributes
from samebits._objects.hashes import CONSTANTS, PLAIN
from samebits._objects.parts import attributes_of, defaults_of
from samebits._program import methods
from samebits.errors import InvalidArgumentError
from samebits.state._attributes import place
from samebits.state._in_place import MUTABLE
from samebits.state._known_classes import is_known, name_of_known
from samebits.state._parts import Parts, is_plain
from samebits.train._completeness.saved_objects import joined
from samebits.train._object_states import Stateful

_WHOLE = 3
"""An object is saved whole if so many of its attributes change, and if all of it can be saved."""
_NAMED_ONLY = (type, types.FunctionType, types.MethodType, types.ModuleType, torch.nn.Module)
"""Of these no attributes are saved unless they are named."""
_STEPPED = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
"""Objects that change in later steps at the latest."""
_COMPONENT = re.compile(r"\.?([^.\[\]]+)|\[((?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^\]])*)\]")
_MISSING = (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError, InvalidArgumentError)
_NOT_SET = "not in attributes that can be set"
_REPLACED = "replaced by another object, and not of what run.state takes"


class WayStep(NamedTuple):
    """An attribute or an item on the way to a value."""

    owner: Any
    path: str
    """The path from the first object, as `samebits.state.attributes` takes it."""
    value: Any


class SavingLines:
    """Lines that give objects to a run, each under a name of its own."""

    def __init__(self, run: str, samebits: str, saved: Collection[int], taken: set[str]) -> None:
        """`run`, `samebits`: their texts; `saved`: identities of what the run has; `taken`: its names."""
        self._run, self._samebits, self._saved, self._taken = run, samebits, set(saved), taken
        self.code: list[str] = []
        self.cannot: dict[str, str] = {}
        """For each path that no line saves, the reason."""

    def attributes(self, name: str, text: str, paths: Iterable[str], ignore: Iterable[str] = ()) -> None:
        """Adds the line that saves attributes of the object that the program calls `text`."""
        given = "".join(f", {_quoted(path)}" for path in paths)
        left_out = ", ".join(map(_quoted, ignore))
        given += f", ignore=[{left_out}]" if left_out else ""
        self._add(name, f"{self._samebits}.state.attributes({text}{given})")

    def save(self, name: str, text: str, thing: Any, paths: Iterable[str], *, new: bool = False) -> None:
        """Adds the lines for the changes at `paths` inside `thing`; `new`: it lacks one before the loop."""
        paths = list(paths)
        is_parts = isinstance(thing, torch.utils.data.DataLoader) and all(paths)  # its state is a position
        if id(thing) not in self._saved and _has_own_state(thing) and not is_parts:
            self._add_objects(name, text, {"": thing})
            if not isinstance(thing, torch.nn.Module):
                self._add_objects(name, text, _parts(thing).with_state_dict)
                return
        direct: list[Sequence[WayStep]] = []
        inside: dict[str, tuple[Any, list[str]]] = {}
        for path in paths:
            if _is_in_state_dict(thing, path):
                continue
            if not path:
                self.cannot[path] = _parts(thing).unsavable.get("", _REPLACED)
                continue
            way = _way(thing, path)
            parts = [*_COMPONENT.finditer(path)]
            own = [at for at, one in enumerate(way[: len(parts) - 1]) if _is_stateful(one.value)]
            if isinstance(thing, torch.nn.Module):  # it saves the modules in it
                own = [at for at in own if not isinstance(way[at].value, torch.nn.Module)]
            if own:
                rest = path[parts[own[0]].end() :].removeprefix(".")
                inside.setdefault(way[own[0]].path, (way[own[0]].value, []))[1].append(rest)
            elif way and len(way) == len(parts) and _can_be_set(way[-1]):
                direct.append(way)
            else:
                self.cannot[path] = _NOT_SET
        for prefix, (one, rests) in inside.items():
            self.save(f"{name}_{prefix}", joined(text, prefix), one, rests)
        if direct:
            direct += [_way(thing, one) for one in _changed_with(thing, {way[0].path for way in direct})]
            self._save_attributes(name, text, thing, direct, new=new)

    def _save_attributes(
        self, name: str, text: str, thing: Any, ways: list[Sequence[WayStep]], *, new: bool
    ) -> None:
        """Adds the line for attributes: of the whole object if several change, else by their paths."""
        whole = _parts(thing)
        several = len({way[0].path for way in ways}) >= _WHOLE and not whole.unsavable
        covered = all(_covers(whole, way[-1].path) for way in ways)
        if (several or new) and covered and not isinstance(thing, _NAMED_ONLY):
            self.attributes(name, text, (), whole.unsavable)
            self._add_objects(name, text, whole.with_state_dict)
            return
        others = {path: one for path, one in whole.with_state_dict.items() if isinstance(one, _STEPPED)}
        named: dict[str, None] = {}
        for way in ways:
            tried = {one: _parts(thing, one) for one in _candidates(way)}
            for path, parts in tried.items():
                if not parts.unsavable and _covers(parts, way[-1].path):
                    named[path] = None
                    self._set_before(joined(text, path), way[-1])
                    others |= parts.with_state_dict
                    break
            else:
                self.cannot[path] = next(iter(parts.unsavable.values()), _NOT_SET)
        if named:
            self.attributes(name, text, named)
        self._add_objects(name, text, others)

    def _set_before(self, text: str, step: WayStep) -> None:
        """Adds the line that gives a module an attribute that its first forward makes."""
        owner, _, name = text.rpartition(".")
        made = isinstance(step.owner, torch.nn.Module) and step.path.rpartition(".")[2] == name
        inits = [vars(base).get("__init__") for base in type(step.owner).__mro__]
        codes = [one.__code__ for one in inits if isinstance(one, types.FunctionType)]
        if made and not any(name in code.co_names for code in codes):
            self.code.append(f'{text} = getattr({owner}, "{name}", None)')

    def _add_objects(self, name: str, text: str, objects: Mapping[str, Any]) -> None:
        """Adds lines for objects inside another, unless the run has them."""
        for path, one in objects.items():
            if id(one) not in self._saved and (not path or isinstance(one, Stateful)):
                self._add(f"{name}_{path}", joined(text, path))
                self._saved.update(map(id, one.modules() if isinstance(one, torch.nn.Module) else [one]))

    def _add(self, name: str, text: str) -> None:
        name = re.sub(r"[\W_]+", "_", name).strip("_")
        while name in self._taken:
            name += "_rest"
        self._taken.add(name)
        self.code.append(f'{self._run}.add("{name}", {text})')


def _way(thing: Any, path: str) -> list[WayStep]:
    """Returns the steps to a value, as far as they can be followed.

    A layer of a Sequential is "[0]", a variable of a closure the content of a cell.
    """
    way: list[WayStep] = []
    at, text = thing, ""
    for name, item in _COMPONENT.findall(path):
        part = f"[{item}]" if item else _part(at, name)
        text = (text + part).removeprefix(".")
        try:
            value = place(thing, text).get()
        except _MISSING:
            break
        way.append(WayStep(place(thing, text).owner, text, value))
        at = value
    return way


def _part(owner: Any, name: str) -> str:
    if isinstance(owner, torch.nn.Module):
        groups = [one for one in ("_modules", "_parameters", "_buffers") if name in vars(owner)[one]]
        if isinstance(owner, torch.nn.Sequential | torch.nn.ModuleList) and name.isdigit():
            return f"[{name}]"
        return f".{groups[0]}[{name!r}]" if groups else f".{name}"
    if isinstance(owner, types.FunctionType):
        cells, defaults = owner.__code__.co_freevars, [one for one, _ in defaults_of(owner)]
        if name in cells:
            return f".__closure__[{cells.index(name)}].cell_contents"
        if name in defaults and defaults.index(name) < len(owner.__defaults__ or ()):
            return f".__defaults__[{defaults.index(name)}]"
    return f".{name}"


def _changed_with(thing: Any, names: set[str]) -> list[str]:
    """Returns the attributes that may change in later steps: methods that set one of `names` mention them."""
    kinds = [kind for kind in type(thing).__mro__ if is_user_type(kind)]
    codes = [code for kind in kinds for code in methods(kind) if code.co_name != "__init__"]
    setting = [code for code in codes if names & attributes_assigned(code)]
    mentioned = {name for code in setting for name in code.co_names} - names
    held = [(name, one) for name, one in attributes_of(thing).items() if name in mentioned]
    return [name for name, one in held if isinstance(one, MUTABLE) and is_plain(one)]


def _candidates(way: Sequence[WayStep]) -> list[str]:
    """Returns the paths that may be named for a change: nothing behind a private name of a package."""
    for step in way[:-1]:
        private = step.path.rpartition(".")[2].startswith("_") and not isinstance(step.owner, torch.nn.Module)
        if private and keeps_attributes(type(step.owner)):
            return [step.path]
    containers = [outer.path for outer, step in pairwise(way) if isinstance(step.owner, list | dict | deque)]
    # they have a state of their own
    modules = {step.path for step in way[:-1] if isinstance(step.value, torch.nn.Module)}
    return [one for one in dict.fromkeys([*containers[:1], way[-1].path]) if one not in modules]


def _can_be_set(step: WayStep) -> bool:
    """Returns True if a restored value can be assigned, or is filled in where it is."""
    if isinstance(step.owner, tuple):
        return isinstance(step.value, list | dict | set | deque)
    if type(step.value) not in PLAIN and not isinstance(step.value, (tuple, *CONSTANTS)):
        return True
    name = step.path.rpartition(".")[2]
    return isinstance(step.owner, list | dict | deque) or name in attributes_of(step.owner)


def _has_own_state(thing: Any) -> bool:
    return _is_stateful(thing) or (is_known(type(thing)) and not _parts(thing).unsavable)


def _is_stateful(thing: Any) -> bool:
    return isinstance(thing, Stateful) or name_of_known(type(thing)) is not None


def _is_in_state_dict(module: Any, path: str) -> bool:
    """Returns True for a parameter, or a buffer that a module's state_dict has."""
    outer, _, name = path.rpartition(".")
    try:
        owner = module.get_submodule(outer)
    except (AttributeError, RuntimeError):  # no module, or one of TorchScript
        return False
    return name in owner._parameters or (name in owner._buffers.keys() - owner._non_persistent_buffers_set)


def _parts(thing: Any, path: str = "") -> Parts:
    """Returns the parts that `samebits.state.attributes` would save."""
    parts = Parts()
    parts.add(path, place(thing, path).get() if path else thing)
    return parts


def _covers(parts: Parts, path: str) -> bool:
    """Returns True if a change at a path is in what is saved, or in an object that the run gets besides."""
    saved = [*parts.values, *parts.generators, *parts.same, *parts.with_state_dict]
    return any(one == "" or is_below(path, one) or is_below(one, path) for one in saved)


def is_below(path: str, outer: str) -> bool:
    """Returns True for a path, and for those inside it."""
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


def _quoted(path: str) -> str:
    return f'"{path}"' if '"' not in path else repr(path)
