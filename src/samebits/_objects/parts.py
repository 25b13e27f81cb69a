"""The parts of an object: attributes, slots, a function's variables, and contents that no `__dict__` shows.

Partials, buffers, queues, caches, files and C values of Python's library have a reader each (`reader_of`).
`nearest_first` goes from part to part.
"""

from __future__ import annotations

import array
import collections
import contextvars
import ctypes
import functools
import io
import itertools
import mmap
import queue
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import torch
import xxhash

from samebits._inspect import code_names
from samebits._inspect.user_code import is_library

_MODULE_OWN = frozenset(vars(torch.nn.Module()))
_OPTIMIZER_OWN = frozenset(
    {"defaults", "param_groups", "state", "_zero_grad_profile_name", "_warned_capturable_if_run_uncaptured"}
)


IMMUTABLE = (bool, int, float, complex, str, bytes, type(None), range, slice, type(Ellipsis))
"""Values that cannot change, and hold nothing that can."""


def closure_of(function: types.FunctionType) -> list[tuple[str, types.CellType]]:
    """Returns the variables of enclosing functions that a function uses, each with its cell."""
    return list(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def contents(cell: types.CellType, otherwise: Any = None) -> Any:
    """Returns the content of a closure's variable, or `otherwise` if it is not set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return otherwise


def attributes_of(value: Any) -> dict[str, Any]:
    """Attributes and slots of an object as they lie: no property, `__getattr__`, `__getattribute__` runs."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for name, slot in _slots(type(value)).items():
        with suppress(AttributeError):  # never assigned
            found[name] = slot.__get__(value)
    return found


@functools.lru_cache(maxsize=4096)
def _slots(kind: type) -> dict[str, types.MemberDescriptorType]:
    tables = (vars(base).items() for base in reversed(kind.__mro__))
    slots = ((name, slot) for table in tables for name, slot in table if name != "__dict__")
    return {name: slot for name, slot in slots if isinstance(slot, types.MemberDescriptorType)}


@functools.lru_cache(maxsize=4096)
def own_names(kind: type) -> frozenset[str]:
    """Attributes of torch's own in instances of a user's subclass; an adapter names those of a library."""
    if hasattr(kind, "__names_of_library__"):
        return kind.__names_of_library__()
    if issubclass(kind, torch.nn.Module):
        return _MODULE_OWN
    return _OPTIMIZER_OWN if issubclass(kind, torch.optim.Optimizer) else frozenset()


def defaults_of(function: types.FunctionType) -> list[tuple[str, Any]]:
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return [*zip(names, values, strict=True), *(function.__kwdefaults__ or {}).items()]


def variables_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields what a function holds: variables of enclosing functions, and defaults."""
    yield from ((name, contents(cell)) for name, cell in closure_of(function))
    yield from defaults_of(function)


def globals_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yields the global variables that a function, or one inside it, names."""
    known = function.__globals__
    return ((name, known[name]) for name in code_names.names(function.__code__) if name in known)


def nearest_first(
    start: Iterable[tuple[str, Any]],
    parts: Callable[[str, Any], Iterable[tuple[str, Any]]],
    *,
    most: int = sys.maxsize,
    leaves: tuple[type, ...] = IMMUTABLE,
    seen: dict[int, Any] | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yields what can be reached from named objects, each object once, with its first name.

    `parts` yields what is one step away from an object, given its name and itself. At most `most` objects are
    reached, `leaves` are classes that are passed over, and `seen` gets the objects, too: an id is unique only
    while its object lives.
    """
    seen = {} if seen is None else seen
    waiting = deque(start)
    while waiting and len(seen) < most:
        name, one = waiting.popleft()
        if id(one) not in seen and not isinstance(one, leaves):
            seen[id(one)] = one
            yield name, one
            waiting.extend(parts(name, one))


_WHOLE_BYTES = 4096
"""Longer buffers count by a hash of their two ends."""
_END_BYTES = 1 << 16


class HeldPart(NamedTuple):
    """A value inside another."""

    kind: str
    """"attr"; "item" of what changes in place; "memo" of a cache; "stream"; "rows" of a database."""
    path: str
    """The text that follows the path of the whole."""
    value: Any


Reader = Callable[[Any], Iterable[HeldPart]]


@functools.lru_cache(maxsize=4096)
def reader_of(kind: type) -> Reader | None:
    """Returns the function that lists the parts of objects of a class; None for an unknown class.

    The function calls nothing of the user's, and changes nothing.

        >>> [part.path for part in reader_of(functools.partial)(functools.partial(print, 1, end=""))]
        ['.func', '.args', '.keywords']
    """
    for base in kind.__mro__:
        found = _BY_TYPE.get(base) or _BY_NAME.get(f"{base.__module__}.{base.__qualname__}")
        if found is not None:
            return found
    return None


@functools.lru_cache(maxsize=4096)
def is_unreadable_iterator(kind: type) -> bool:
    """Returns True for an iterator in C whose position nothing shows: a cursor, `itertools.islice`."""
    return (
        hasattr(kind, "__next__")
        and not kind.__dictoffset__
        and not isinstance(kind.__next__, types.FunctionType)
        and kind is not itertools.repeat
        and (reader_of(kind) is None or any(base.__name__ == "Cursor" for base in kind.__mro__))
    )


def is_read_by_next(file: Any) -> bool:
    """Returns True for a text file that is read line by line, which then does not tell its position."""
    if not isinstance(file, io.TextIOWrapper) or file.closed or not file.readable() or file.writable():
        return False
    try:
        return file.seekable() and file.tell() < 0
    except OSError:
        return True


def _buffer(value: Any) -> Iterable[HeldPart]:
    view = memoryview(value)
    if view.nbytes > 2 * _END_BYTES:
        flat = view.cast("B") if view.contiguous else memoryview(view.tobytes())
        ends = flat[:_END_BYTES].tobytes() + flat[-_END_BYTES:].tobytes()
    else:
        ends = view.tobytes()
    short = len(ends) <= _WHOLE_BYTES
    return [HeldPart("item", "", (view.nbytes, ends if short else xxhash.xxh3_64_digest(ends)))]


def _mmap(value: mmap.mmap) -> Iterable[HeldPart]:
    return [] if value.closed else [*_buffer(value), HeldPart("item", ".tell()", value.tell())]


def _memo(value: Any) -> Iterable[HeldPart]:
    """Lists the number of results in a cache: a function that draws returns others when it is called anew."""
    code = getattr(value.__wrapped__, "__code__", None)
    if code is None or is_library(code.co_filename):
        return []
    return [
        HeldPart("memo", ".cache_info()", value.cache_info().currsize),
        HeldPart("attr", "", value.__wrapped__),
    ]


def _weak_values(value: Any) -> Iterable[HeldPart]:
    held = list(dict.items(value.data))
    weak = isinstance(value, weakref.WeakValueDictionary)
    return [HeldPart("item", ".values()", [key for key, _ in held] if weak else [item for _, item in held])]


def _file(value: Any) -> Iterable[HeldPart]:
    """Lists the position of a file that is only read: a written file is more often a log than a state."""
    if value.closed or not value.readable() or value.writable() or not value.seekable():
        return []
    try:
        return [HeldPart("attr", ".tell()", value.tell())]
    except OSError:  # "telling position disabled by next() call"
        return [HeldPart("attr", ".tell()", value.buffer.tell())]


def _in_memory(value: Any) -> Iterable[HeldPart]:
    if value.closed:
        return []
    content = (
        value.getbuffer() if isinstance(value, io.BytesIO) else value.getvalue().encode(errors="replace")
    )
    return [
        HeldPart("stream", ".tell()", value.tell()),
        *(part._replace(kind="stream") for part in _buffer(content)),
    ]


def _cycle(value: Any) -> Iterable[HeldPart]:
    if not hasattr(value, "__reduce__") or "__reduce__" not in vars(itertools.cycle):
        return []  # Python 3.14
    _, (inner,), (saved, _) = value.__reduce__()
    return [HeldPart("attr", "", inner), HeldPart("attr", ".saved", len(saved))]


def _script_module(value: Any) -> Iterable[HeldPart]:
    """Yields the plain attributes of a TorchScript module: they are in C++."""
    known = vars(value).get("_concrete_type")
    if known is None:
        return
    for name, _ in sorted(known.get_attributes().items()):
        item = value._c.getattr(name)
        if not isinstance(item, torch.Tensor | torch._C.ScriptObject):
            yield HeldPart("attr", f".{name}", item)


def _attributes(*names: str) -> Reader:
    return lambda value: [HeldPart("attr", f".{name}", getattr(value, name)) for name in names]


def _one(kind: str, path: str, read: Callable[[Any], Any]) -> Reader:
    return lambda value: [HeldPart(kind, path, read(value))]


_BY_TYPE: dict[type, Reader] = {
    functools.partial: _attributes("func", "args", "keywords"),
    collections.UserDict: _attributes("data"),
    collections.UserList: _attributes("data"),
    collections.ChainMap: _attributes("maps"),
    bytearray: _buffer,
    memoryview: _buffer,
    array.array: _buffer,
    mmap.mmap: _mmap,
    ctypes._SimpleCData.__mro__[1]: _buffer,
    queue.Queue: _one("item", "", lambda value: list(value.queue)),
    queue.SimpleQueue: _one("item", ".qsize()", lambda value: value.qsize()),
    functools._lru_cache_wrapper: _memo,
    contextvars.ContextVar: _one("item", ".get()", lambda value: value.get(None)),
    threading.local: lambda value: _attributes(*vars(value))(value),
    weakref.WeakKeyDictionary: _weak_values,
    weakref.WeakValueDictionary: _weak_values,
    weakref.WeakSet: _one("item", "", len),
    io.TextIOWrapper: _file,
    io.BufferedIOBase: _file,
    io.FileIO: _file,
    io.BytesIO: _in_memory,
    io.StringIO: _in_memory,
    itertools.cycle: _cycle,
    types.CoroutineType: _one(
        "attr", "", lambda value: -1 if value.cr_frame is None else value.cr_frame.f_lasti
    ),
}
_BY_NAME: dict[str, Reader] = {
    "_csv.reader": _attributes("line_num"),
    "csv.DictReader": _attributes("reader"),
    "decimal.Context": _attributes("prec", "rounding", "Emin", "Emax", "capitals", "clamp"),
    "sqlite3.Connection": _one("rows", ".total_changes", lambda value: value.total_changes),
    "sqlite3.Cursor": _one("rows", ".connection.total_changes", lambda value: value.connection.total_changes),
    "multiprocessing.sharedctypes.SynchronizedBase": _one(
        "item", ".get_obj()", lambda value: vars(value)["_obj"]
    ),
    "torch.jit._script.RecursiveScriptModule": _script_module,
}
"""The readers by name, so that reading imports none of these modules."""
