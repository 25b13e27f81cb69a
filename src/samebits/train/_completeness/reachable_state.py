"""The state of a loop and its run at one boundary: hashes, with the place of each value."""

from __future__ import annotations

import gc
import io
import itertools
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits._dtensors import local
from samebits._inspect.user_code import is_user_type, keeps_attributes, may_hold_state
from samebits._objects import rng_states, structure
from samebits._objects.generators import generators_in
from samebits._objects.hashes import CONSTANTS, PLAIN, leaf, plain
from samebits._objects.parts import attributes_of, is_read_by_next, own_names
from samebits._objects.rng_states import GENERATORS, of_generator
from samebits._objects.structure import hooks_of
from samebits._objects.walk import DEPTH, ITEMS, Walk
from samebits._program import LoopFrames, Program, StoredPlace, names_of_library, release_locals
from samebits.data import Pipeline
from samebits.data._pipeline import held_by
from samebits.data._resumable import Resumable
from samebits.state._attributes import Attributes
from samebits.state._known_classes import keeps_only_generators
from samebits.train._committed_state import CommittedState
from samebits.train._completeness import kinds_of_state
from samebits.train._completeness.saved_objects import SavedObjects, memory_of, saved_path
from samebits.train._loop.accelerate_loader import prepared

PACKAGE = "package"
"""The kind of root of a value in an installed package's module."""
NONE = plain(None)
_WRITTEN = (torch.device, torch.dtype)
"""The classes of keys that a path shows by their `repr`, which has no address."""


_NAMES = frozenset({"local", "name", "attr", "item"})
"""The kinds of places that may mean one object or another."""
_LOOKS = itertools.count()


Steering = Callable[[str, set[str]], Iterable[str]]
"""Tells by which of the attributes of an object of this name a program decides, for packages of output."""


class Leaf(NamedTuple):
    """One value at one boundary."""

    hashed: bytes
    value: Any
    """The value if it is plain; else None."""
    root: str
    """"given" (an object of the run), "loader", "local" or "global"."""
    places: tuple[StoredPlace, ...]
    """The names that hold it, from the root inwards."""
    owners: tuple[tuple[type, str], ...]
    """The classes of the user's objects around it, each with the attribute that leads to it."""
    way: tuple[int, ...] = ()
    """The identities of the objects from the root to it."""
    installed: bool = False
    """True if an object of an installed package holds it."""
    generator: bool = False
    """True for the state of a random generator."""


class RootedGenerator(NamedTuple):
    """A generator that can be reached from a root, by whatever path."""

    root: str
    name: str
    path: str
    generator: Any


class NotedObject(NamedTuple):
    """An object of an installed package that is walked after all that is the user's."""

    path: str
    value: Any
    root: str
    places: tuple[StoredPlace, ...]
    owners: tuple[tuple[type, str], ...]
    way: tuple[int, ...]


_MOST, _MOST_INSTALLED = 600, 400
"""Leaves of a snapshot, and those of installed packages, which crowd out nothing of the user's."""


class StateSnapshot(Walk):
    """A walk that keeps its leaves by path. Afterwards it holds none of the user's objects."""

    def __init__(self) -> None:
        super().__init__(_MOST, thorough=True)
        self.leaves_by_path: dict[str, Leaf] = {}
        self.after_loop: set[str] = set()
        """The locals that only the code after the loop reads."""
        self.action_of = kinds_of_state.action_of
        self.in_package = False
        """True for the values of a module of an installed package."""
        self.kinds: set[type] = set()
        """Classes of the user's objects, and of the parts of the loader."""
        self.functions_held = set[str]()
        """The paths of functions in objects and containers."""
        self.callables: set[str] = set()
        """Names that hold something that may be called: a module, an object with `__call__`."""
        self.steps: set[str] = set()
        """Names that hold a step of `run.steps`."""
        self.fetching: set[type | types.CodeType] = set()
        """The user's classes, the samplers, and the functions of a pipeline, that the loader fetches with."""
        self.samplers: set[type] = set()
        """The classes of samplers, whose `set_epoch` the loader calls."""
        self.roots: dict[str, kinds_of_state.Role] = {}
        """The `kinds_of_state.role` of what each name holds."""
        self.structure: dict[str, structure.Structure] = {}
        """The structure of the modules that were met, by path."""
        self.modules: list[tuple[str, torch.nn.Module]] = []
        self.named: dict[str, Leaf] = {}
        """By the path of each name of an object, a leaf with the path of the saved object that it is."""
        self.noted_names: Mapping[str, list[str]] = {}
        """The names in the commit of a resumed run: a value of equal content counts as the object."""
        self._held: SavedObjects
        self._spans: dict[int, tuple[str, int, int]] = {}
        """Of each object that was met its first path, and where its leaves begin and end in `names`."""
        self._positions: set[int] = set()
        """The identities of the positions of the run's loaders, which their iterators move on."""
        self._value: Any = None
        self._root = "given"
        self._places: list[StoredPlace] = []
        self._owners: list[tuple[type, str]] = []
        self._saved: set[int] = set()
        self.saved_attributes: set[tuple[int, str]] = set()
        """The attributes that adapters of the run save, by the identity of the object and the name."""
        self._way: list[int] = []
        self._names: dict[int, set[str]] = {}
        """The names that hold each object that was met, by its identity."""
        self._variables: dict[int, set[str]] = {}
        """The roots from which each object was met."""
        self._holds: dict[str, set[int]] = {}
        """The identities of the objects that each name holds: several of one class may have it."""
        self.holders: dict[str, tuple[str, tuple[StoredPlace, ...], tuple[tuple[type, str], ...], type]] = {}
        """By its path what leads to each object with attributes: the root, places, owners; and its class."""
        self.sees_training: set[str] = set()
        """The names from which an object of the run can be reached."""
        self.ignored: set[int] = set()
        """The identities of the objects at the ignored paths: other paths through them are ignored too."""
        self.installed_kinds: set[type] = set()
        """The classes of installed packages of the objects that were walked."""
        self.states: dict[str, str] = {}
        self.states_before: dict[str, str] = {}
        """The digests of the states of the run's objects, now and at the check before."""
        self.found: list[RootedGenerator] = []
        """The generators of objects of any class."""
        self._tensors: dict[str, weakref.ref[torch.Tensor]] = {}
        self._ignored_paths: frozenset[str] = frozenset()
        self._deferred: deque[NotedObject] = deque()
        self._hooked: list[tuple[str, torch.nn.Module, int, str, tuple[StoredPlace, ...]]] = []
        self.steering: Steering = lambda _name, _fields: ()
        self.assigned: frozenset[str] = frozenset()
        """The names of the attributes that the user's functions assign."""

    def know(self, objects: Mapping[str, Any], saved: CommittedState) -> None:
        """Notes the tensors and containers that the commit holds: all in their memory is saved."""
        self._held = SavedObjects(objects, saved, itertools.chain(*self.noted_names.values()))
        whole = [one for one in objects.values() if isinstance(one, Attributes) and one.saves_all]
        self._seen.update(id(held) for one in whole for _, held in one.held())
        optimizers = [one for one in objects.values() if isinstance(one, torch.optim.Optimizer)]
        self._seen.update(id(group) for one in optimizers for group in (one.param_groups, *one.param_groups))
        for value in kinds_of_state.inner(vars(saved)):
            if isinstance(value, torch.Tensor):
                self._saved.add(kinds_of_state.of_tensor(value))
            elif isinstance(value, np.ndarray):
                self._saved.add(memory_of(value))
                self._seen.add(id(value))
            else:
                self._seen.add(id(value))

    def key(self, key: Any, number: int) -> str:
        """Returns a separate text for each key, so that entries differ: tuples too, objects by order."""
        if type(key) is tuple:
            return ", ".join(self.key(part, number) for part in key)
        return repr(key) if type(key) in PLAIN or isinstance(key, _WRITTEN) else f"...{number}"

    def root(self, kind: str, name: str, value: Any) -> None:
        """Walks what a name holds: an object of the run, the loader, a variable."""
        self._root, self.in_package = kind, kind == PACKAGE
        place = StoredPlace("name" if kind == "global" else kind, name)
        self.roots[name] = kinds_of_state.role(value)
        self._places.append(place)
        self._note(name, value)
        if kind == "loader" and isinstance(value, types.FunctionType):
            self.fetching.add(value.__code__)
        self.value(name, value, 0)
        self._places.pop()
        self.in_package = False

    def give(self, objects: dict[str, Any]) -> None:
        """Skips the run's objects as any walk, and the positions of its loaders."""
        self.skip(objects)
        self._positions = {id(thing._live) for thing in objects.values() if isinstance(thing, Resumable)}

    def part(self, kind: str, name: str, path: str, value: Any, depth: int) -> None:
        """Walks a value inside another, and keeps the way that leads to it."""
        if kind in {"item", "stream"}:
            name = self._places[-1].name if self._places else ""
        if self._way and (self._way[-1], name) in self.saved_attributes:
            return
        owned = kind == "attr" and bool(self._owner)
        if owned:
            holder = path.rpartition(".")[0]
            if holder not in self.holders:
                held = self._root, tuple(self._places), tuple(self._owners), self._owner
                self.holders[holder] = held  # type: ignore[assignment]
            self._owners.append((self._owner, name))  # type: ignore[arg-type]
        self._places.append(StoredPlace(kind, name))
        if kind not in {"item", "stream"}:
            self._note(name, value)
        owner, self._owner = self._owner, None
        self.value(path, value, depth)
        self._owner = owner
        self._places.pop()
        if owned:
            self._owners.pop()

    _owner: type | None = None

    def _note(self, name: str, value: Any) -> None:
        kind = type(value)
        if isinstance(value, torch.nn.Module) or (is_user_type(kind) and "__call__" in dir(kind)):
            self.callables.add(name)
        if is_user_type(kind) or (self._root == "loader" and isinstance(value, torch.utils.data.Sampler)):
            self.kinds.add(kind)
            if self._root == "loader":
                self.fetching.add(kind)

    def value(self, path: str, value: Any, depth: int) -> None:
        self._value = value if type(value) in PLAIN or isinstance(value, CONSTANTS) else None
        if path in self._ignored_paths and self._value is None:
            self.ignored.add(id(value))
        if id(value) in self._given and self._places and self._root in {"local", "global"}:
            self.sees_training.add(self._places[0].name)
        if self._value is None and self._places:
            place = self._places[-1]
            self._names.setdefault(id(value), set()).add(place.name)
            # a closure has the variable itself
            held = [one.name for one in self._places if one.kind == "name"] or [self._places[0].name]
            self._variables.setdefault(id(value), set()).add(held[-1])
            if place.kind not in {"item", "stream"}:
                self._holds.setdefault(place.name, set()).add(id(value))
        self._way.append(id(value))
        if self._value is None and self._places and self._places[-1].kind in _NAMES:
            self._note_object(path, value)
        first = self._spans.setdefault(id(value), (path, len(self.names), 0))
        if depth > DEPTH and self.action(type(value)) == "owned_attributes" and id(value) not in self._seen:
            self._seen.add(id(value))
            self.installed(path, value, depth)
        else:
            self.read(path, value, depth)
        if first[0] == path:
            self._spans[id(value)] = *first[:2], len(self.names)
        self._way.pop()

    def _note_object(self, path: str, value: Any) -> None:
        """Keeps which saved object a name means, or the class of another one."""
        saved, noted = self._held.path_of(value), self.noted_names.get(path)
        if noted and saved is None and any(self._held.is_equal(value, one) for one in noted):
            saved = saved_path(noted)
        if (saved == path and self._root == "given") or self.in_package or value is None:
            return
        if self._owners and self._is_of_package(*self._owners[-1]):
            return
        role = self.roots.get(path)
        is_object = role is not None and role.group in {"object", "library", "class"}
        text = saved or (kinds_of_state.named(value) if is_object else "")
        held = self._root, tuple(self._places), tuple(self._owners), tuple(self._way)
        self.named[path] = Leaf(plain(str(text)), saved, *held)

    def add(self, path: str, hashed: bytes) -> None:
        self.names.append(path)
        held = tuple(self._places), tuple(self._owners), tuple(self._way)
        installed = self.in_package or (bool(self._owners) and self._is_of_package(*self._owners[-1]))
        self.leaves_by_path[path] = Leaf(hashed, self._value, self._root, *held, installed)

    def _is_hung(self, kind: type, name: str) -> bool:
        """Returns True for an attribute that the program hung on an object of a library's class."""
        return name in self.assigned and name not in names_of_library(kind)

    def _is_of_package(self, kind: type, name: str) -> bool:
        return keeps_attributes(kind) and not self._is_hung(kind, name)

    def _hung_attributes(self, path: str, value: Any, depth: int) -> None:
        for name, item in attributes_of(value).items():
            if self._is_hung(type(value), name):
                self._owner = type(value)
                self.part("attr", name, f"{path}.{name}", item, depth + 1)
        self._owner = None

    def at(self, path: str) -> Leaf | None:
        """Returns the leaf of the object or the value at a path; a second name's has the object's content."""
        one = self.named.get(path)
        if one is None or not self.is_second_name(path):
            return one or self.leaves_by_path.get(path)
        first, begin, end = self._spans[one.way[-1]]
        names = self.names[begin:end]
        content = [
            part for name in names for part in (name.replace(first, "", 1), self.leaves_by_path[name].hashed)
        ]
        return one._replace(hashed=plain([one.hashed, *content]))

    def is_second_name(self, path: str) -> bool:
        """Returns True for a name of an object outside the commit that was met before under another name."""
        one = self.named.get(path)
        return one is not None and one.value is None and self._spans[one.way[-1]][0] != path

    def met(self, identity: int) -> bool:
        """Returns True if the object of this identity was walked."""
        return identity in self._names

    def is_shared(self, one: Leaf) -> bool:
        """Returns True if the leaf's holder was also met under another name, or another holder under this."""
        name = one.places[-1].name
        inner = list(itertools.takewhile(lambda place: place.name == name, reversed(one.places)))
        return len(self._holds.get(name, ())) > 1 or any(
            self._names.get(way, {name}) != {name} for way in one.way[-len(inner) :]
        )

    def has_other_names(self, one: Leaf) -> bool:
        """Returns True if an object on the way to the leaf can be reached from two variables."""
        return any(len(self._variables.get(way, ())) > 1 for way in one.way)

    def action(self, kind: type) -> str | None:
        """Returns the method for a type: optimizers are read; of samebits' objects, the user's parts."""
        return self.action_of(kind)

    def owned_attributes(self, path: str, value: Any, depth: int) -> None:
        """Walks the attributes of a user's object."""
        self.holders[path] = self._root, tuple(self._places), tuple(self._owners), type(value)
        self._owner = type(value)
        self.attributes(path, value, depth)
        self._owner = None
        if isinstance(value, torch.optim.Optimizer):
            self.optimizer(path, value, depth)

    def content(self, path: str) -> bytes | None:
        """Returns the hash of the bits of a tensor that counts by its writes; None for other values."""
        tensor = self._tensors[path]() if path in self._tensors else None
        return None if tensor is None else leaf(tensor)

    def state_changed(self, name: str) -> bool:
        """Returns True if the object of the run returned another state than at the check before."""
        return self.states_before.get(name) != self.states.get(name)

    def installed(self, path: str, value: Any, depth: int) -> None:
        """Notes an object of an installed package, or deep inside others: it is walked by `noted_objects`."""
        one = NotedObject(path, value, self._root, tuple(self._places), tuple(self._owners), tuple(self._way))
        if self._root == "given":  # the layers of a large model come last
            self._deferred.append(one)
        else:
            self._deferred.insert(sum(d.root != "given" for d in self._deferred), one)

    def read_attributes(self, path: str, value: Any, depth: int) -> None:
        """Walks what the program reads of an object of a package of output to decide something: `bar.n`."""
        for name in sorted(self.steering(self._places[-1].name, kinds_of_state.fields_of(value))):
            with suppress(Exception):  # a property: the program reads it, too
                item = getattr(value, name)
                several = isinstance(item, list | tuple)
                for index, part in enumerate(item[:ITEMS] if several else [item]):
                    if type(part) in PLAIN or self.action(type(part)) == "read_attributes":
                        self._owner = type(value)
                        self.part("attr", name, f"{path}.{name}" + f"[{index}]" * several, part, depth + 1)
        self._owner = None

    def table(self, path: str, value: Any, depth: int) -> None:
        """Adds one leaf for a table of pandas or polars: its shape, and the values of its columns."""
        columns = [value[name] for name in value.columns[:ITEMS]] if len(value.shape) == 2 else [value]
        self.add(path, plain([*value.shape, *map(kinds_of_state.of_column, columns)]))

    def noted_objects(self) -> None:
        """Walks the attributes of the noted objects, the nearest first, and of those inside them."""
        self.most += _MOST_INSTALLED
        while self._deferred and len(self.names) < self.most:
            path, value, self._root, places, owners, way = self._deferred.popleft()
            self._places, self._owners, self._way = list(places), list(owners), list(way)
            kind = type(value)
            if keeps_attributes(kind):
                self.installed_kinds.add(kind)
            own = own_names(kind)
            draws = keeps_only_generators(kind)  # a transform of MONAI, albumentations, kornia
            for name, item in attributes_of(value).items():
                for index, part in kinds_of_state.objects_in(item) if draws else [("", item)]:
                    if name not in own:
                        self._owner = kind
                        self.part("attr", name, f"{path}.{name}{index}", part, 0)
        self._owner = None
        self._places, self._owners, self._way = [], [], []

    def generators(self, found: Iterable[RootedGenerator]) -> None:
        """Adds the random generators that objects of any class hold and that were not met yet."""
        for root, name, path, generator in found:
            if id(generator) not in self._seen:
                self._seen.add(id(generator))
                place = StoredPlace("name" if root == "global" else root, name)
                places = (place, StoredPlace("attr", path.rpartition(".")[2]))
                self.names.append(path)
                held = of_generator(generator), None, root, places, (), (id(generator),)
                self.leaves_by_path[path] = Leaf(*held, installed=True, generator=True)

    def marked_generator(self, path: str, value: Any, depth: int) -> None:
        self.generator(path, value, depth)
        if path in self.leaves_by_path:
            self.leaves_by_path[path] = self.leaves_by_path[path]._replace(generator=True)

    def hooked_module(self, path: str, value: torch.nn.Module, depth: int) -> None:
        """Walks a module's attributes, and those of its parameters; its hooks come last."""
        self._owner = type(value) if is_user_type(type(value)) else None
        self.module(path, value, depth)
        self._owner = None
        if may_hold_state(type(value)):
            self.installed(path, value, depth)
        elif not is_user_type(type(value)):
            for name, item in vars(value).items():  # an object that was hung on a layer of torch's
                if is_user_type(type(item)) or may_hold_state(type(item)) or isinstance(item, GENERATORS):
                    self.part("attr", name, f"{path}.{name}", item, depth + 1)
        self.modules.append((path, value))
        self._hooked.append((path, value, depth, self._root, tuple(self._places)))
        for name, parameter in value._parameters.items():
            if parameter is not None:
                self._attributes_in(f"{path}.{name}", parameter, depth)

    def hooks(self) -> None:
        """Walks what the hooks of the modules hold and no variable does."""
        for path, module, depth, root, places in self._hooked:
            self._root, self._places = root, list(places)
            for hook in hooks_of(module):
                name = getattr(hook, "__name__", type(hook).__name__)
                self.part("hook", name, f"{path}.{name}", hook, depth + 1)
        self._hooked.clear()
        self.structure = structure.of_modules(self.modules)
        self.modules.clear()

    def function_and_attributes(self, path: str, value: types.FunctionType, depth: int) -> None:
        """Walks a function's cells and attributes (`f.calls += 1`); an object's is a value (`cfg.loss`)."""
        if self._places and self._places[-1].kind in {"attr", "item"}:
            self.functions_held.add(path)
            self.add(path, plain(structure.described(value)))
        self.function(path, value, depth)
        self._attributes_in(path, value, depth)

    def _attributes_in(self, path: str, value: Any, depth: int) -> None:
        for name, item in vars(value).items():
            self.part("attr", name, f"{path}.{name}", item, depth + 1)

    def loader_and_attributes(self, path: str, value: Any, depth: int) -> None:
        """Walks the user's objects in a loader, and what was hung on it."""
        for part in ("dataset", "sampler", "batch_sampler"):
            self._note(part, getattr(value, part, None))
        batches = getattr(value, "batch_sampler", None)
        samplers = (getattr(value, "sampler", None), batches, getattr(batches, "sampler", None))
        self.samplers.update(map(type, samplers))
        self.loader(path, value, depth)
        own = [vars(base) for base in type(value).__mro__ if is_user_type(base)]
        if not any("state_dict" in names for names in own):  # a commit has the state of a loader
            self._hung_attributes(path, value, depth)

    def holder(self, path: str, value: Any, depth: int) -> None:
        """Walks the user's objects and functions in one of samebits (`Trainer`), without its counters."""
        self._hung_attributes(path, value, depth)
        own = own_names(type(value))
        for name, item in attributes_of(value).items():
            if name in own:
                continue
            inner = item.values() if isinstance(item, dict) else item
            inner = inner if isinstance(item, dict | list | tuple) else (item,)
            if any(kinds_of_state.is_users_own(one) for one in inner):
                self.part("attr", name, f"{path}.{name}", item, depth + 1)

    def uncommitted_tensor(self, path: str, value: torch.Tensor, depth: int) -> None:
        """Adds a leaf, unless the commit holds its memory. Parameters of unknown modules count by writes."""
        if kinds_of_state.of_tensor(value) in self._saved:
            return
        if self._places and self._places[-1].kind == "tensor" and not value.is_inference():
            self.add(path, plain((value._version, local(value).data_ptr())))
            self._tensors[path] = weakref.ref(value)
        else:
            self.tensor(path, value, depth)

    def uncommitted_array(self, path: str, value: Any, depth: int) -> None:
        """Adds one leaf, unless the commit holds the memory: `w = model.weight.detach().numpy()`."""
        owner = value
        while isinstance(owner, np.ndarray):
            owner = owner.base
        if not isinstance(owner, torch.Tensor) or kinds_of_state.of_tensor(owner) not in self._saved:
            self.array(path, value, depth)

    def iterator_of_the_user(self, path: str, value: Any, depth: int) -> None:
        """Adds one leaf, unless it was given to the run, or is the iteration of a loader that was."""
        if id(value) in self._given or id(getattr(value, "position", None)) in self._positions:
            return
        frame = value.gi_frame if isinstance(value, types.GeneratorType) else None
        if frame is None or id(frame.f_locals.get("loader")) not in self._given:
            inner = [] if frame is None else gc.get_referents(value)
            held = [one for one in inner if self.action(type(one)) == "cursor"]
            unreadable = any(not isinstance(one, io.IOBase) or is_read_by_next(one) for one in held)
            (self.cursor if unreadable else self.iterator)(path, value, depth)
        if frame is not None:
            release_locals([frame])

    def cursor(self, path: str, value: Any, depth: int) -> None:
        """Adds a leaf that differs at each look: nothing shows how far an iterator written in C has come."""
        self.library(path, value, depth)
        of_a_run = any(type(one).__module__.startswith("samebits.") for one in gc.get_referents(value))
        if of_a_run or (isinstance(value, io.IOBase) and not is_read_by_next(value)):
            return
        self._places.append(StoredPlace("cursor", self._places[-1].name))
        self.add(path, plain(next(_LOOKS)))
        self._places.pop()

    def optimizer(self, path: str, value: torch.optim.Optimizer, depth: int) -> None:
        """Adds one leaf, which changes with its state or its learning rates; walks what was hung on it."""
        self._hung_attributes(path, value, depth)
        if id(value) in self._given:
            return
        states = [state for state in value.state.values() if isinstance(state, Mapping)]
        items = [item for state in states for item in state.values()]
        counts = [item._version if isinstance(item, torch.Tensor) else leaf(item) for item in items]
        rates = [leaf(group.get("lr")) for group in value.param_groups]
        self.add(f"{path}.state", plain([counts, rates]))


def take(
    frames: LoopFrames,
    objects: Mapping[str, Any],
    saved: Any,
    loader: Any,
    program: Program,
    *,
    ignored: Iterable[str] = (),
    trusted: Iterable[str] = (),
    known: list[RootedGenerator] | None = None,
    walk: StateSnapshot | None = None,
    steering: Steering | None = None,
    further: Callable[[LoopFrames, Program], Iterable[tuple[str, str, Any]]] | None = None,
) -> StateSnapshot:
    """Returns the leaves at this boundary.

    `ignored`: paths; the objects there are noted. `trusted`: names of objects of the run that are not looked
    into. `known`: the generators that an earlier check found; None: the search takes most of the time.
    `walk`: the snapshot to fill; `further`: returns more roots, as kind, name and value.
    """
    walk = StateSnapshot() if walk is None else walk
    walk._ignored_paths = frozenset(ignored)
    walk.steering = steering or walk.steering
    walk.assigned = program.attributes_assigned
    walk.give(dict(objects))
    walk.know(objects, saved)
    passed: list[Any] = [objects[name] for name in trusted if name in objects]
    passed += [one for thing in passed for one in getattr(thing, "__saved_objects__", list)()]
    wholes = map(kinds_of_state.saved_whole, objects.values())
    passed += [whole for whole in wholes if whole is not None]
    if (of_accelerate := prepared(loader)) is not None:
        passed.append(loader)
        loader = of_accelerate.batches
    for thing in objects.values():
        if isinstance(thing, Attributes):
            walk.saved_attributes |= thing.named_attributes()
    passed += rng_states.of_loader(loader)  # a commit has them
    passed += [scope for one in frames.user for scope in (one.f_locals, one.f_globals)]
    walk._seen.update(map(id, passed))
    held = (pair for one in frames.user for pair in one.f_locals.items())
    walk.steps |= {name for name, value in held if kinds_of_state.is_step(value)}
    carried = {**frames.carried[0]}
    carried.pop("__class__", None)  # of a method that calls super()
    outer = _globals(program) | frames.script_globals  # the script's by its code
    roots = [("given", name, value) for name, value in objects.items()]
    if loader is not None:
        roots.append(("loader", frames.name_of(loader), loader))
    if isinstance(loader, Pipeline):
        roots += [("loader", frames.name_of(one, name), one) for name, one in held_by(loader)]
    modules = {id(sys.modules.get(one.f_globals.get("__name__", ""))) for one in frames.user}
    saved_globals = {name for module, name in walk.saved_attributes if module in modules}
    if frames.user[-1].f_locals is frames.user[-1].f_globals:
        carried = {name: value for name, value in carried.items() if name not in saved_globals}
    outer = {name: value for name, value in outer.items() if name not in saved_globals}
    roots += [("local", name, value) for name, value in sorted(carried.items())]
    roots += [("global", name, value) for name, value in sorted(outer.items()) if name not in carried]
    _, after = frames.assigned
    walk.after_loop = after.keys() - carried.keys() - outer.keys()
    roots += [("local", name, after[name]) for name in sorted(walk.after_loop)]
    if further is not None:
        known_names = {name for _, name, _ in roots}
        roots += [one for one in further(frames, program) if one[1] not in known_names]
    for kind, name, value in roots:
        walk.root(kind, name, value)
    walk.hooks()
    walk.noted_objects()
    walk.found = _generators(roots, passed) if known is None else known
    walk.generators(walk.found)
    return walk


def _generators(roots: Iterable[tuple[str, str, Any]], passed: Iterable[Any]) -> list[RootedGenerator]:
    seen = {id(thing): thing for thing in passed}
    return [
        RootedGenerator(root, name, path, generator)
        for root, name, value in roots
        for path, generator in generators_in([(name, value)], seen)
    ]


def _globals(program: Program) -> dict[str, Any]:
    """Returns the globals that the functions of the user's modules read."""
    found: dict[str, Any] = {}
    script = sys.modules.get("__main__")
    for module in program.modules:
        if module is not script or getattr(script, "__file__", None) is None:  # of a notebook's many codes
            held = vars(module)
            names = program.global_names(module)
            names = {one for one in names if one in held and kinds_of_state.may_change(held[one])}
            found |= {name: held[name] for name in names}
    return found
