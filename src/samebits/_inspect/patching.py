"""Attributes that are replaced for a time: functions of torch, NumPy and Python, restored afterwards.

Programs ask functions for more than a call: MONAI takes NumPy's global generator from
`np.random.random.__self__`. So what replaces a function answers as the function does (`stand_in`).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from samebits._inspect.user_code import warn
from samebits._lazy_imports import AfterImport, when_imported

_ABSENT = object()
"""Marks a value that the owner inherits or computes."""


@dataclass(eq=False)
class _Patch:
    """One replaced attribute, with the owner's value before and since."""

    owner: Any
    name: str
    before: Any
    stored: Any


_patches: list[_Patch] = []
"""All current patches, in the order in which they were put; two of one attribute are undone in any order."""


class Patches:
    """Replaced attributes and awaited imports, undone together in reverse order."""

    def __init__(self) -> None:
        self._own: list[_Patch] = []
        self._awaited: list[AfterImport] = []

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Sets `owner.name` to `value` until `undo`."""
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, value)
        self._own.append(_Patch(owner, name, before, vars(owner).get(name, _ABSENT)))
        _patches.append(self._own[-1])

    def force(self, config: Any, name: str, value: Any) -> None:
        """Sets an entry of a torch config module, for every thread and over later assignments, until `undo`.

        `config.name = value` would hold in this thread only: since torch 2.13 such values are `ContextVar`s.
        """
        self.put(config._config[name], "env_value_force", value)

    def when_imported(self, name: str, action: Callable[[ModuleType], None]) -> None:
        """Calls `action(module)` now if the module `name` is imported, else at the end of its import."""
        finder = when_imported(name, action)
        if finder is not None:
            self._awaited.append(finder)

    def undo(self) -> None:
        """Restores everything; harmless when there is nothing.

        An attribute that was replaced again since the patch is left as it is, with a warning.
        """
        own, awaited = self._own, self._awaited
        self._own, self._awaited = [], []
        for finder in awaited:
            finder.withdraw()
        for patch in reversed(own):
            _undo(patch)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replaces `owner.name` by `value` in the block.

    Example:
        >>> import math
        >>> with replaced(math, "pi", 3):
        ...     math.pi
        3
    """
    patches = Patches()
    patches.put(owner, name, value)
    try:
        yield
    finally:
        patches.undo()


class _StandIn:
    """Answers as the object that it replaces: class, signature, equality, copies and pickles included."""

    def __init__(self, original: Any, attributes: dict[str, Any]) -> None:
        object.__setattr__(self, "_samebits", (original, attributes))

    def __getattribute__(self, name: str) -> Any:
        original, attributes = object.__getattribute__(self, "_samebits")
        if name == "__deepcopy__":
            return functools.partial(_deep_copy, self, original)
        return attributes[name] if name in attributes else getattr(original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(_original(self), name, value)

    def __copy__(self) -> Any:
        return self

    def __eq__(self, other: object) -> bool:
        return bool(_original(self) == (_original(other) if is_stand_in(other) else other))

    def __hash__(self) -> int:
        return hash(_original(self))

    def __repr__(self) -> str:
        return repr(_original(self))


class _DescriptorStandIn(_StandIn):
    """Replaces a method that a C class has: bound to an object, it is a stand-in of the bound method."""

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        call: Any = self
        return stand_in(_original(self).__get__(instance, owner), functools.partial(call, instance))


def stand_in(original: Any, call: Callable[..., Any], **attributes: Any) -> Any:
    """Returns a callable that calls `call`, and that is like `original` in all else that a program can ask.

    A Python function becomes a Python function, by `functools.wraps`. Of another callable only `is` and
    `type` see a difference; `isinstance`, `==` and `inspect` do not.

    Args:
        original: the function that is replaced.
        call: is called in its place.
        attributes: the answers for attributes that are not those of `original`.

    Example:
        >>> import math, inspect
        >>> checked = stand_in(math.sqrt, lambda x: math.sqrt(abs(x)))
        >>> checked(-4), str(inspect.signature(checked)), checked.__self__ is math, checked == math.sqrt
        (2.0, '(x, /)', True, True)
    """
    if isinstance(original, FunctionType):
        return functools.wraps(original)(call)
    is_unbound = getattr(original, "__self__", None) is None
    kind = _DescriptorStandIn if hasattr(type(original), "__get__") and is_unbound else _StandIn
    # in a class of its own, so that no frame is added to a call
    return type(kind.__name__, (kind,), {"__call__": staticmethod(call)})(original, attributes)


def is_stand_in(value: Any) -> bool:
    """Returns True for what `stand_in` returned in place of something other than a Python function."""
    return issubclass(type(value), _StandIn)


def _original(value: Any) -> Any:
    return object.__getattribute__(value, "_samebits")[0]


def _deep_copy(replacement: Any, original: Any, memo: dict[int, Any]) -> Any:
    copied = copy.deepcopy(original, memo)
    return replacement if copied is original else copied


def _undo(patch: _Patch) -> None:
    owner, name = patch.owner, patch.name
    place = next(number for number, one in enumerate(_patches) if one is patch)
    del _patches[place]
    above = [one for one in _patches[place:] if one.owner is owner and one.name == name]
    if above:
        if above[0].before is patch.stored:
            above[0].before = patch.before
    elif vars(owner).get(name, _ABSENT) is not patch.stored:
        warn(
            f"{getattr(owner, '__name__', owner)}.{name} was replaced while samebits had replaced it. "
            "It is left so."
        )
    elif patch.before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, patch.before)
