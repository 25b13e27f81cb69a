"""`attributes`: an adapter with a `state_dict` for an object that has none."""

from __future__ import annotations

import ast
import copy
import functools
import random
import re
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits import _digest as digest
from samebits._inspect.user_code import is_user_type
from samebits._objects.hashes import PLAIN
from samebits._objects.parts import attributes_of
from samebits._objects.rng_states import restore_state, state_of
from samebits.checkpoint import _classes as classes
from samebits.errors import InvalidArgumentError, RunMismatchError
from samebits.state._in_place import PlacedObjects, Restored
from samebits.state._parts import Parts, refuse

_PART = re.compile(r"\.?([^\W\d]\w*)|\[(-?\d+|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")\]")


class Place(NamedTuple):
    """An attribute or an item of `owner`."""

    owner: Any
    name: Any
    is_item: bool

    def get(self) -> Any:
        """Returns the value; raises KeyError, IndexError, TypeError or AttributeError if there is none.

        An attribute that only `__getattr__` finds belongs to another object: setting it here is in vain.
        """
        if self.is_item:
            return self.owner[self.name]
        if self.name not in attributes_of(self.owner) and not hasattr(type(self.owner), self.name):
            raise AttributeError(self.name)
        return getattr(self.owner, self.name)

    def set(self, value: Any) -> None:
        if self.is_item:
            self.owner[self.name] = value
        else:
            setattr(self.owner, self.name, value)


def place(root: Any, path: str) -> Place:
    """Returns the place of a path, even without a value; raises as `Place.get` if an owner is missing.

    Example:
        >>> place({"a": [1, 2]}, "['a'][1]").get()
        2
    """
    *above, last = _parts(path)
    for name, is_item in above:
        root = Place(root, name, is_item).get()
    return Place(root, *last)


def _parts(path: str) -> list[tuple[Any, bool]]:
    parts, at = [], 0
    while at < len(path) and (found := _PART.match(path, at)):
        name, item = found.groups()
        parts.append((name, False) if item is None else (ast.literal_eval(item), True))
        at = found.end()
    if not parts or at < len(path):
        raise InvalidArgumentError(
            f"samebits.state.attributes(..., {path!r}): not a path. Write it as the program does: "
            '"counter", "scheduler.step", "envs[0].state", "tables[\'a\']".'
        )
    return parts


_MISSING = (AttributeError, KeyError, IndexError, TypeError)
_BITS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
IsState = Callable[[Any, str, Any], bool]


class Attributes:
    """An adapter, made by `samebits.state.attributes`, whose `state_dict` is the target's state, by path.

    A value that is still the object that it was before the loop is restored in place, so that other
    references to it stay valid; others are assigned, as the program has assigned them.
    """

    target: Any
    """The object whose state is saved."""

    def __init__(
        self,
        target: Any,
        paths: Sequence[str],
        call: str,
        ignored: Sequence[str] = (),
        is_state: IsState | None = None,
        find: Callable[[Any], Sequence[str]] | None = None,
    ) -> None:
        """`find`: returns the paths of all state that the target has now, in place of `paths`."""
        self.target = target
        self._paths, self._call, self._find = tuple(paths), call, find
        self._ignored, self._is_state = frozenset(ignored), is_state
        self.saved_besides: frozenset[int] = frozenset()
        """The identities of objects that the run of this adapter saves by names of their own."""
        self.modules_of_run: dict[str, Any] = {}
        """The modules that it saves, by their names there: "model.heads.1"."""
        self._placed = PlacedObjects()
        self.note_placed()
        self._first = self._parts().with_state_dict
        """The objects that the run saves by themselves, by the place in which the program has put them."""

    def note_placed(self, made: Collection[int] = ()) -> None:
        """Notes the objects that the program has put into the target, but those that a resume has `made`."""
        parts = self._parts()
        self._placed.note(parts.values, made)
        self._at_start = {id(one): one for one in parts.held.values()}
        self._kinds_at_start = {path: type(one) for path, one in parts.held.items()}

    def _check_new(self, parts: Parts) -> None:
        """Raises `InvalidArgumentError` for an object of the loop that a resume could not make again."""
        found = {}
        for path, one in parts.held.items():
            inner = next((name for name in parts.passed_over if name.startswith(f"{path}.")), "")
            if (
                id(one) not in self._at_start
                and self._kinds_at_start.get(path) is not type(one)  # a resumed program makes one, too
                and not (_is_items(one) and not _loses_factory(path, parts.held))
                and (inner or not _can_be_made(type(one)))
            ):
                found[path] = f"a {type(one).__qualname__}, added in the loop, {_obstacle(inner, one)}"
        if found:
            raise refuse(self._call, found)

    def check_besides(self, name: str, parts: Parts | None = None) -> None:
        """Raises `InvalidArgumentError` if the target holds (say) an optimizer that the run does not save.

        `name`: of this adapter in the run. `parts`: of the target, if they are known.
        """
        parts = parts or self._parts()
        lines = [
            "\n"
            f'    run.add("{name}_{re.sub(r"[^0-9A-Za-z]+", "_", path).strip("_")}", {name}{_after(path)})  '
            f"# a {type(one).__qualname__}"
            for path, one in parts.with_state_dict.items()
            if id(one) not in self.saved_besides
        ]
        if lines:
            paths = ", ".join(f'"{path}"' for path in parts.with_state_dict)
            raise InvalidArgumentError(
                f"{self._call}: it holds objects with a state_dict of their own, which is not saved here. "
                f"Give them to the run, too, before the loop:{''.join(lines)}\n"
                f"or, if it works without their state: samebits.state.attributes(..., ignore=[{paths}])."
            )

    def is_like(self, other: Attributes) -> bool:
        """Returns True if `other` saves the same attributes of an object of the same class."""
        mine, theirs = (
            (type(one.target), one._paths, one._ignored, one._is_state, one._find) for one in (self, other)
        )
        return mine == theirs

    def named_attributes(self) -> set[tuple[int, str]]:
        """Returns the attributes that are named, each by the identity of its object and its name."""
        places = [place(self.target, path) for path in self._paths]
        return {(id(one.owner), one.name) for one in places if not one.is_item}

    def held(self) -> list[tuple[str, Any]]:
        """Returns the objects that are saved, or whose parts are, each with its path."""
        return self._parts().objects()

    @property
    def saves_all(self) -> bool:
        """True if no part of the target was chosen or left out: its state is complete."""
        return self._find is not None or (not self._paths and not self._ignored)

    def state_dict(self) -> dict[str, Any]:
        """Returns values and generators' states by path; tensors are no copies."""
        state = self.live_state()
        return state | {"values": {path: _copied(value) for path, value in state["values"].items()}}

    def live_state(self, numbers: dict[int, int] | None = None) -> dict[str, Any]:
        """Returns the state with the very objects of the target, as a commit takes them.

        `numbers`: of the objects in the commit so far, by identity; gets those of this target.
        """
        parts, numbers = self._parts(), {} if numbers is None else numbers
        self._check_new(parts)
        shapes = {path: _shape(one, numbers) for path, one in parts.held.items() if path or _is_items(one)}
        self.check_besides(type(self.target).__name__.lower(), parts)
        return {
            "class": type(self.target).__qualname__,
            "values": parts.values,
            "generators": {path: [_kind_of(one), state_of(one)] for path, one in parts.generators.items()},
            "same": parts.same,
            "replaced": self._placed.replaced(parts.values),
            **({"shapes": shapes} if shapes else {}),
            **({"moved": moved} if (moved := self._moved(parts)) else {}),
        }

    def _moved(self, parts: Parts) -> dict[str, str]:
        """Returns the places that hold such an object of another place: a model that has another role.

        A module that was at no place of the target has the name that it has in the run, behind a "/".
        """
        first = {id(one): f"/{path}" for path, one in self.modules_of_run.items()}
        first |= {id(one): path for path, one in self._first.items()}
        held = ((path, first.get(id(one), path)) for path, one in parts.with_state_dict.items())
        return {path: was for path, was in held if was != path}

    def keeps(self, path: tuple[Any, ...]) -> bool:
        """Returns True for the place of a value that a resume fills in place."""
        return self._placed.has(path)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restores a state of `state_dict`.

        Raises:
            RunMismatchError: the object is of another class, or lacks an object that the state has values of.
        """
        restored = Restored()
        self.bind(state_dict, restored)
        self.load(state_dict, restored)

    def bind(self, saved: Mapping[str, Any], restored: Restored) -> None:
        """Notes which of the target's objects take the content of which saved ones."""
        here = self._parts()
        replaced = {tuple(path) for path in saved.get("replaced", ())}
        replaced |= {(path,) for pair in here.same.items() ^ saved["same"].items() for path in pair}
        restored.bind_items(saved["values"], {**here.held, **here.values}, replaced)

    def load(self, saved: Mapping[str, Any], restored: Restored) -> None:
        """Restores a state as `load_state_dict`; what it shares with others is in `restored`."""
        if saved["class"] != type(self.target).__qualname__:
            raise RunMismatchError(
                f"{self._call}: the saved state is of a {saved['class']}, this is a "
                f"{type(self.target).__qualname__}."
            )
        for path, (kind, *shape) in saved.get("shapes", {}).items():
            self._restore_shape(path, kind, shape, restored)
        here = self._parts()
        if not self._paths:
            parts = ("values", "generators", "same", "shapes")
            there = {*here.values, *here.generators, *here.same, *here.held}
            self._remove(there - {"", *(path for part in parts for path in saved.get(part, ()))})
        for path, (kind, state) in saved["generators"].items():
            self._restore_generator(path, kind, copy.deepcopy(state))
        for path, first in saved.get("moved", {}).items():
            self._set(path, self.modules_of_run[first[1:]] if first[0] == "/" else self._first[first])
        for path, value in saved["values"].items():
            self._restore_value(path, restored.of(value))
        for path, first in saved["same"].items():
            shared = place(self.target, first).get() if first else self.target
            if _value_at(self._place(path)) is not shared:
                self._set(path, shared)

    def _parts(self) -> Parts:
        if self._find is not None:
            self._paths = tuple(self._find(self.target))
        parts = Parts(self._ignored, self._is_state)
        for path in self._paths or ("",):
            parts.add(path, self._get(path) if path else self.target)
        for path in parts.with_state_dict.keys() & set(self._paths):
            parts.unsavable[path] = "an object with a state_dict. Give it to the run by a name of its own"
        if parts.unsavable:
            raise refuse(self._call, parts.unsavable)
        return parts

    def _get(self, path: str) -> Any:
        try:
            return place(self.target, path).get()
        except _MISSING as error:
            raise InvalidArgumentError(
                f"{self._call}: there is no {path!r} ({type(error).__name__}: {error}). Give the path to the "
                "object that holds it, and set it before."
            ) from None

    def _place(self, path: str) -> Place:
        try:
            return place(self.target, path)
        except _MISSING:
            raise self._mismatch(path, "was saved, and the object that held it is missing here") from None

    def _set(self, path: str, value: Any) -> None:
        at = self._place(path)
        try:
            at.set(value)
        except (AttributeError, TypeError):  # read-only, frozen, a tuple
            now = _value_at(at)
            if classes.is_instance(at.owner) and not at.is_item and now is not value:  # of a frozen class
                object.__setattr__(at.owner, at.name, value)
                return
            if now is not value and (type(now) is not type(value) or digest.differing(now, value)):
                raise self._mismatch(path, "has another value here, and cannot be set") from None

    def _restore_shape(self, path: str, kind: str, shape: list[Any], restored: Restored) -> None:
        """Puts an object, or a container of objects, at its place, to be filled."""
        at = self._place(path) if path else None
        now = self.target if at is None else _value_at(at)
        value = (
            _container(now, kind, *shape) if kind in _SIZED else self._object(now, kind, shape[0], restored)
        )
        if value is None or (at is None and value is not now):
            raise self._mismatch(
                path, f"was a {kind.replace(':', '.')}, and this program has no such class yet"
            )
        if at is not None and value is not now:
            self._set(path, value)

    def _object(self, now: Any, name: str, number: int, restored: Restored) -> Any:
        """Returns the live object of a number; one that is made gets its attributes later. None: no class."""
        known = restored.instances.get(number)
        if known is None:
            known, taken = now, {id(one) for one in restored.instances.values()}
            if classes.name_of(type(now)) != name or id(now) in taken:
                kind = classes.find_class(name)
                known = object.__new__(kind) if kind is not None and _can_be_made(kind) else None
            restored.instances[number] = known
        return known

    def _restore_value(self, path: str, value: Any) -> None:
        now = _value_at(self._place(path), _MISSING) if path else self.target
        if now is value:
            return
        if not path:
            raise self._mismatch("the object", f"was a {type(value).__name__} that cannot be filled in here")
        self._set(path, value)

    def _restore_generator(self, path: str, kind: str, state: Any) -> None:
        now = _value_at(self._place(path)) if path else self.target
        if now is None or _kind_of(now) != kind:
            now = _new_generator(kind)
            if now is None or not path:
                raise self._mismatch(path or "the object", f"was a {kind}, and is not")
            self._set(path, now)
        restore_state(now, state)

    def _remove(self, paths: Iterable[str]) -> None:
        """Removes attributes that the object did not have when it was saved."""
        for path in sorted(paths, key=len, reverse=True):  # the inner ones first
            at = self._place(path)
            if not at.is_item and at.name in getattr(at.owner, "__dict__", ()):
                delattr(at.owner, at.name)

    def _mismatch(self, path: str, text: str) -> RunMismatchError:
        return RunMismatchError(f"{self._call}: {path} {text}.")


def attributes(target: Any, *paths: str, ignore: Sequence[str] = ()) -> Attributes:
    """Returns an adapter that gives an object without a `state_dict` one, for `Run(name=...)` and `run.add`.

    Saved are plain values, arrays, tensors, random generators (of NumPy, Python and torch) and containers of
    them. Of an object at a path, and of `target` itself without paths, all attributes are saved, and those of
    the objects that it holds. Code, locks and loggers are passed over. An optimizer, a module or another
    object with a `state_dict` is left to the run, which must have it by a name. Nothing is pickled.

    Args:
        target: the object.
        paths: the attributes to save: "counter", "inner.step", "envs[0].state". None: all.
        ignore: paths that are left out.

    Raises:
        InvalidArgumentError: an attribute is missing, or cannot be saved; the message names it. Or `target`
            is a class, a function or a module, and has no paths.

    Example:
        >>> class Average:
        ...     def __init__(self):
        ...         self.total, self.seen, self.report = 0.0, 0, print
        >>> first, second = Average(), Average()
        >>> first.total, first.seen = 2.5, 3
        >>> samebits.state.attributes(second).load_state_dict(samebits.state.attributes(first).state_dict())
        >>> second.total, second.seen
        (2.5, 3)
    """
    if isinstance(ignore, str) or not all(isinstance(one, str) for one in (*paths, *ignore)):
        raise InvalidArgumentError(
            f'samebits.state.attributes(<{type(target).__name__}>, ...): paths are str: "counter", '
            '"inner.step"; ignore is a list of them.'
        )
    if not paths and isinstance(target, type | types.FunctionType | types.MethodType | types.ModuleType):
        name = target.__name__
        raise InvalidArgumentError(
            f"samebits.state.attributes({name}): of a {type(target).__name__} no attributes are saved unless "
            f'they are named: samebits.state.attributes({name}, "counter").'
        )
    return Attributes(target, paths, f"samebits.state.attributes(<{type(target).__name__}>)", ignore)


def _after(path: str) -> str:
    return path if path.startswith("[") else f".{path}"


_SIZED: dict[str, type] = {
    kind.__name__: kind for kind in (list, deque, dict, OrderedDict, defaultdict, Counter)
}
"""The containers of objects, by the names of their classes."""


@functools.lru_cache(maxsize=4096)
def _can_be_made(kind: type) -> bool:
    """Returns True for a class of the program's own that a resume finds by its name."""
    return is_user_type(kind) and classes.find_class(classes.name_of(kind)) is kind


def _loses_factory(path: str, held: Mapping[str, Any]) -> bool:
    """Returns True for a defaultdict that no other one has made: its factory is in no commit."""
    outer = held.get(path[: path.rindex("[")] if path.endswith("]") else "")
    return getattr(held[path], "default_factory", None) is not None and type(outer) is not defaultdict


def _obstacle(inner: str, value: Any) -> str:
    """Returns the reason why a resumed process cannot make an object, and the cure."""
    if inner:
        return f"with {inner}, which only the program can make. Give it plain values instead"
    if _is_items(value):
        return "with a factory, which only the program can make. Keep its plain values instead"
    return "of a class that is not the program's. Keep its plain values instead"


def _is_items(value: Any) -> bool:
    return type(value) in _SIZED.values()


def _shape(value: Any, numbers: dict[int, int]) -> list[Any]:
    """Returns the class of an object and its number; of a container its length, or its keys."""
    if not _is_items(value):
        return [classes.name_of(type(value)), numbers.setdefault(id(value), len(numbers))]
    return [type(value).__name__, [*value] if isinstance(value, dict) else len(value)]


def _container(now: Any, kind: str, shape: Any) -> Any:
    """Returns a container with these keys or this length: `now`, if it is one of its kind.

    A defaultdict makes what it lacks, as in training: the factories of inner ones are known to it alone.
    """
    held = now if type(now) is _SIZED[kind] else _SIZED[kind]()
    if isinstance(held, dict):
        makes = getattr(held, "default_factory", None)
        items = {key: held[key] if makes else held.get(key) for key in shape}
        held.clear()
        held.update(items)
    else:
        while len(held) > shape:
            held.pop()
        held.extend([None] * (shape - len(held)))
    return held


def _value_at(at: Place, default: Any = None) -> Any:
    try:
        return at.get()
    except _MISSING:
        return default


def _copied(value: Any) -> Any:
    """Returns a value whose containers are copies; tensors and arrays are not copied."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if type(value) is tuple:
        return tuple(map(_copied, value))
    if not isinstance(value, dict | list | deque):
        return copy.copy(value) if isinstance(value, set | bytearray) else value
    new: Any = copy.copy(value)
    if not set(map(type, _items(value))) <= PLAIN:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            new[key] = _copied(item)
    return new


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _kind_of(generator: Any) -> str:
    """Returns the class of a generator, of NumPy's with that of its bits: "Generator:PCG64"."""
    kind = type(generator).__name__
    if isinstance(generator, torch.Generator):
        return f"torch:{generator.device}"
    if isinstance(generator, np.random.Generator):
        return f"{kind}:{type(generator.bit_generator).__name__}"
    return kind


def _new_generator(kind: str) -> Any:
    """Returns a generator of a class that has no state of the user's; None for another class."""
    name, _, inner = kind.partition(":")
    if name == "torch":
        return torch.Generator(inner)
    if name == "Generator" and inner in _BITS:
        return np.random.Generator(getattr(np.random, inner)(0))
    if name in {*_BITS, "RandomState"}:
        return getattr(np.random, name)(0)
    return random.Random(0) if name == "Random" else None
