"""Changes that the program makes to what its functions reach, of which workers have a copy from before.

A flag of the dataset, a transform, a global or a closure's variable, a list that grows. The walk follows
the names in the code of the functions: a collate method of a trainer sees none of the trainer's counters.
"""

from __future__ import annotations

import functools
import operator
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from samebits._inspect import code_names
from samebits._inspect.code_names import names_in
from samebits._inspect.library_code import is_library_code
from samebits._inspect.words import words
from samebits._objects.parts import IMMUTABLE, attributes_of, closure_of, contents, defaults_of
from samebits._objects.rng_states import RESTORABLE
from samebits.data._rolling_digest import update_digest

OBJECTS, PLACES, ITEMS, MANY, BYTES, SMALL = 5000, 1000, 64, 200_000, 64 << 20, 1 << 14
"""Bounds: objects, places, items that are walked over, and compared; bytes hashed in all, at each batch."""
_PASSES = 6
_FIXED = (
    *IMMUTABLE, types.BuiltinFunctionType, types.MethodWrapperType, torch.dtype, torch.device, torch.Size,
    np.dtype, np.generic, np.ufunc, *RESTORABLE
)  # fmt: skip
"""Objects that nothing changes, and generators, which are set for each element."""
_FIXED_MODULES = words("builtins re datetime _thread _weakref pathlib decimal fractions")
_SPECIAL = words("__call__ __getitem__ __getitems__ __len__ __iter__ __next__ __getattr__")
_CONTAINERS = (dict, list, tuple, set, frozenset, deque)


class ReachedValues:
    """The values that some functions reach, as they are now: compared with those that are there later."""

    def __init__(self, functions: Sequence[Any], *, whole: bool) -> None:
        """`whole`: contents are kept, too, for `may_differ`."""
        self._functions = list(functions)
        self._names: set[str] = set()
        self._all_attributes = False
        size = -1
        for _ in range(_PASSES):  # a method whose name was found has names of its own
            if size == len(self._names):
                break
            size = len(self._names)
            self._walk()
        self._held = self._now()
        self._inside = self._contents() if whole else None

    def changed(self) -> str | None:
        """Returns the name of a place that holds something else by now: asked before each batch."""
        now = self._now()
        if all(map(operator.is_, now, self._held)):
            return None
        for at, (new, old) in enumerate(zip(now, self._held, strict=True)):
            if new is not old and not (type(new) is type(old) and isinstance(new, IMMUTABLE) and new == old):
                return self._places[at][0]
        return None

    def may_differ(self, functions: Sequence[Any]) -> bool:
        """Returns True if these are other functions, or not all that they reach is known to be as it was."""
        if self._inside is None or functions != self._functions or self.changed() is not None:
            return True
        now, before = self._contents(), self._inside
        if now is None or now[0] != before[0] or len(now[1]) != len(before[1]):
            return True
        return not all(map(operator.is_, now[1], before[1]))

    def _now(self) -> list[Any]:
        return [get(argument) for _, get, argument in self._places]

    def _contents(self) -> tuple[int, list[Any]] | None:
        """Returns the digest of arrays, and the items of containers; None if that is too much to look at."""
        items = [one for held in self._large for one in (held.values() if isinstance(held, dict) else held)]
        if self._is_partial or len(items) > MANY or sum(one.nbytes for one in self._arrays) > BYTES:
            return None
        # of large ones only the first are walked over: the others must be such that nothing changes inside
        return (update_digest(0, self._arrays), items) if all(map(_is_known, items)) else None

    def _walk(self) -> None:
        self._places: list[tuple[str, Callable[[Any], Any], Any]] = []  # name, getter, its argument
        self._arrays: list[Any] = []
        self._large: list[Any] = []
        self._is_partial = False
        """True if there is something that the walk cannot look into, or more than it looks at."""
        seen: dict[int, Any] = {}
        self._queue: deque[tuple[str, Any]] = deque(("", one) for one in self._functions)
        while self._queue and len(seen) < OBJECTS and len(self._places) < PLACES:
            name, found = self._queue.popleft()
            if id(found) not in seen and not isinstance(found, _FIXED):
                seen[id(found)] = found
                self._look(name, found)
        self._is_partial |= bool(self._queue)
        self._queue.clear()

    def _look(self, name: str, found: Any) -> None:
        if isinstance(found, types.FunctionType):
            self._function(found)
        elif isinstance(found, type):
            self._class(found)
        elif isinstance(found, types.ModuleType):
            if not is_library_code(found):
                self._follow(found.__name__, vars(found).get, self._names & vars(found).keys())
        elif isinstance(found, _CONTAINERS):
            self._container(name, found)
        elif isinstance(found, np.ndarray | torch.Tensor):
            self._array(name, found)
        elif (inside := _wrapped(found)) is not None:
            self._queue.extend((name, one) for one in inside)
        else:
            self._object(found)

    def _follow(self, name: str, get: Callable[[Any], Any], keys: Iterable[Any]) -> None:
        """Notes these places, and walks on from what is there."""
        for key in keys:
            whole = f"{name}.{key}" if name else str(key)
            self._places.append((whole, get, key))
            self._queue.append((whole, get(key)))

    def _function(self, found: types.FunctionType) -> None:
        for name, cell in closure_of(found):
            self._places.append((name, contents, cell))
            self._queue.append((name, contents(cell)))
        self._queue += [*defaults_of(found), ("", getattr(found, "__wrapped__", None))]
        texts = [(*code.co_names, *code.co_consts) for code in code_names.whole(found.__code__)]
        named = {one for several in texts for one in several if isinstance(one, str)}
        self._names |= named - {"__dict__", "vars"}
        if not is_library_code(found):
            self._all_attributes |= not named.isdisjoint(("__dict__", "vars"))
            self._follow(found.__qualname__, vars(found).get, list(vars(found)))
            known = found.__globals__
            self._follow("", known.get, [name for name in names_in(found.__code__)[0] if name in known])

    def _class(self, kind: type) -> None:
        """Follows methods and variables that the code names, and those that syntax calls."""
        for base in kind.__mro__[:-1]:
            names = (self._names | _SPECIAL) & vars(base).keys()
            if is_library_code(base):
                self._queue.extend((name, vars(base)[name]) for name in names)
            else:
                self._follow(base.__qualname__, vars(base).get, names)

    def _container(self, name: str, found: Any) -> None:
        keys = found if isinstance(found, dict) else range(len(found))
        if isinstance(found, dict | list) and len(found) <= ITEMS:
            self._follow(
                name, found.get if isinstance(found, dict) else functools.partial(_item, found), keys
            )
        else:
            inside = found.values() if isinstance(found, dict) else found
            self._queue.extend((f"{name}[...]", one) for one, _ in zip(inside, range(ITEMS), strict=False))
            self._large.append(found)
        if not isinstance(found, tuple | frozenset):
            self._places.append((f"len({name})", len, found))

    def _array(self, name: str, found: Any) -> None:
        if isinstance(found, torch.Tensor):
            if not found.is_inference():
                self._places.append((f"{name}, changed in place", operator.attrgetter("_version"), found))
        elif not found.flags.writeable or (isinstance(found, np.memmap) and found.mode != "c"):
            return  # what others write into the file, workers see as this process does
        elif found.nbytes <= SMALL:
            self._places.append((f"{name}, changed in place", functools.partial(update_digest, 0), found))
        self._is_partial |= found.dtype in (object, np.dtype(object)) or getattr(found, "is_cuda", False)
        self._arrays.append(found)

    def _object(self, found: Any) -> None:
        kind, own = type(found), attributes_of(found)
        names = own.keys() if self._all_attributes else self._names & own.keys()
        if isinstance(found, torch.nn.Module) and next(found.parameters(), None) is not None:
            self._is_partial = True  # each step of the training changes them
            names = names - {"_parameters", "_buffers", "_modules"}
        self._queue.append(("", kind))
        table = getattr(found, "__dict__", None)
        if isinstance(table, dict):
            self._places.append((f"the attributes of {kind.__qualname__}", len, table))
        self._is_partial |= not (own or isinstance(table, dict) or kind.__module__ in _FIXED_MODULES)
        get = (
            table.get
            if isinstance(table, dict) and own.keys() <= table.keys()
            else lambda key: getattr(found, key, None)
        )
        self._follow(kind.__qualname__, get, names)


def _wrapped(found: Any) -> list[Any] | None:
    """Returns what a bound method, a partial, a memo or a property is made of; None for another object."""
    if isinstance(found, types.MethodType):
        return [found.__self__, found.__func__]
    if isinstance(found, functools.partial):
        return [found.func, found.args, found.keywords]
    if isinstance(found, functools._lru_cache_wrapper | staticmethod | classmethod):
        return [found.__wrapped__]
    if isinstance(found, property | functools.cached_property):
        return [found.fget if isinstance(found, property) else found.func]
    return None


def _item(found: list[Any], at: int) -> Any:
    return found[at] if at < len(found) else None


def _is_known(one: Any) -> bool:
    return type(one) in IMMUTABLE or (type(one) is tuple and all(type(part) in IMMUTABLE for part in one))
