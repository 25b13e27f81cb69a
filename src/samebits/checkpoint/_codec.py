"""Nested state to a JSON-able tree plus a flat dict of tensors, and back, exactly. No pickle.

In the tree None, bools, strings, 64-bit integers, finite floats and lists are encoded as themselves;
everything else is an object with one key, the tag of its decoder. Mappings are flat lists of keys and values:
their order is state, and their keys need not be strings. An object that is met twice is encoded once, under a
number (`shared`); wherever it is met again, the number stands for it (`same`).
"""

from __future__ import annotations

import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, NoneType
from typing import Any, NamedTuple

import numpy as np
import torch

from samebits._dtensors import is_dtensor, local
from samebits._objects.memory import are_near, with_strides
from samebits.checkpoint import _classes as classes
from samebits.checkpoint import _constants as constants
from samebits.checkpoint._sharded_tensors import is_whole
from samebits.errors import UnsavableStateError

PLAIN = (bool, int, float, str, bytes, tuple, list, dict, set)


def unsavable(path: Sequence[Any], value: Any, what: str | None = None) -> UnsavableStateError:
    """Returns the error for `value` at `path`: `callbacks[0]["fn"] is a function, ... Cure.`"""
    return UnsavableStateError(
        f"{render(path)} is {what or _what(value)}. A commit holds plain values, dense tensors and NumPy "
        f"arrays, and never pickles. {_cure(value)}"
    )


def render(path: Sequence[Any]) -> str:
    """Returns `path` as Python: the first key bare, the others as subscripts."""
    if not path:
        return "state"
    return f"{path[0]}" + "".join(f"[{key!r}]" for key in path[1:]).replace("['", '["').replace("']", '"]')


def _what(value: Any) -> str:
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType):
        return f"a function ({value.__qualname__})"
    if isinstance(value, type):
        return f"a class ({value.__qualname__})"
    return f"an object of type {type(value).__module__}.{type(value).__qualname__}"


def _cure(value: Any) -> str:
    if isinstance(value, torch.Generator):
        return "Save its get_state() instead."
    if isinstance(value, random.Random):
        return "Save its getstate() instead."
    if isinstance(value, np.random.Generator):
        return "Save its bit_generator.state instead."
    if isinstance(value, torch.Tensor):
        return "Save plain dense tensors instead, for example its to_dense(), or the tensors it is made of."
    if isinstance(value, np.ndarray):
        return "Save it as a plain numeric array, or as a list."
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType | type | ModuleType):
        return "Leave it out of the state_dict, or save a name and look it up in load_state_dict."
    if hasattr(value, "state_dict"):
        return "Save its state_dict() instead."
    for kind in PLAIN:
        if isinstance(value, kind) and type(value) is not kind:
            return f"Convert it to a plain {kind.__name__}."
    return "Leave it out of the state_dict, or save the plain values it is made of."


MAX_DEPTH = 100
SMALL = 2**63
FACTORIES = {kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)}
KEYS = (str, int, bool, NoneType, float, bytes)
TENSORS = (torch.Tensor, torch.nn.Parameter)
Tensors = dict[str, torch.Tensor]


def encode(value: Any) -> tuple[Any, Tensors]:
    """Returns the JSON-able tree of `value` and its tensors by dotted path; `decode` restores equal values.

    Takes nestings of dict, OrderedDict, defaultdict, Counter, list, tuple, deque, set and frozenset with
    None, bool, int, float, complex, str, bytes, bytearray, dense tensors of any dtype, NumPy arrays and
    scalars, torch.Size, torch.dtype and torch.device; named tuples, dataclass instances, members of enums;
    dates and times, paths, Decimal, Fraction, UUID, range and slice (as keys, too). The tensors are
    those of `value`, not copies; tied ones (the same memory seen the same way) come once. A parameter is
    saved without `requires_grad`.

    Raises:
        UnsavableStateError: a value is anything else; the message names its path and the cure.
    """
    encoder = Encoder(repeated=repeated(value))
    return encoder.node(value), encoder.tensors


def decode(plain: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Returns the value whose `encode` gave `plain` and `tensors`: one object where there was one.

    Arrays and tensors share memory with `tensors`. KeyError, TypeError or ValueError for another tree.
    Raises `RunMismatchError` for an instance of a class that this program does not have.
    """
    return _decode(plain, _Known(tensors, {}, {}))


class _Known(NamedTuple):
    """The values that are there while a tree is decoded."""

    tensors: Mapping[str, torch.Tensor]
    shared: dict[int, Any]
    classes: dict[str, tuple[type, list[str]]]


def _decode(plain: Any, known: _Known) -> Any:
    if isinstance(plain, list):
        return [_decode(item, known) for item in plain]
    if isinstance(plain, dict):
        ((tag, body),) = plain.items()
        return _DECODERS[tag](body, known)
    return plain


_NO_OBJECTS = frozenset(
    (NoneType, bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device, *TENSORS)
)
"""Types without parts whose identity does not count; tensors are one where they see the same memory."""
OBJECTS = frozenset((list, dict, OrderedDict, defaultdict, Counter, deque, set, bytearray, np.ndarray))
"""Types of what can be changed in place."""


def repeated(value: Any) -> set[int]:
    """Returns the ids of the objects in a state that are met more than once: lists, dicts, arrays, ...

    >>> row = [1]
    >>> repeated({"a": [row], "b": row, "c": 1, "d": 1}) == {id(row)}
    True
    """
    seen: dict[int, bool] = {}
    found: set[int] = set()

    def holds_objects(value: Any, depth: int) -> bool:
        if id(value) in seen:
            if seen[id(value)]:
                found.add(id(value))
            return seen[id(value)]
        parts = [part for _, part in classes.items_of(value)]
        if type(value) is OrderedDict:
            parts.append(vars(value))
        own = type(value) in OBJECTS or (bool(parts) and not isinstance(value, tuple))
        own = own or any(type(part) in TENSORS for part in parts)  # `past[-1] is carry` asks for tuples, too
        seen[id(value)] = own
        if depth < MAX_DEPTH and not _NO_OBJECTS.issuperset(map(type, parts)):
            inner = [holds_objects(part, depth + 1) for part in parts if type(part) not in _NO_OBJECTS]
            own = seen[id(value)] = own or any(inner)
        return own

    holds_objects(value, 0)
    return found


class Encoder:
    """One walk over a state; `path` holds the keys that lead to the value under the cursor."""

    def __init__(
        self,
        replace: Callable[[tuple[Any, ...], Any, Any], Any] | None = None,
        repeated: Collection[int] = (),
    ) -> None:
        self._replace = replace
        """Called with path, value and tree of each child; returns the tree to put in its place."""
        self._repeated, self._numbers, self._open = repeated, {}, set()  # type: ignore[var-annotated]
        self._classes: set[str] = set()
        self.met_objects = False
        """True if there was a child that can be changed in place."""
        self.tensors: Tensors = {}
        self.names: dict[tuple[Any, ...], str] = {}
        self.path: list[Any] = []
        self.names_by_path: dict[tuple[Any, ...], str] = {}

    def node(self, value: Any) -> Any:
        encode_kind = _ENCODERS.get(type(value))
        if encode_kind is not None:
            return encode_kind(self, value)
        if is_dtensor(value):
            return self.sharded(value)
        if classes.is_instance(value):
            return self.instance(value)
        if constants.is_constant(value):
            return {"constant": list(map(self.node, constants.parts_of(value)))}
        raise unsavable(self.path, value)

    def child(self, key: Any, value: Any) -> Any:
        """Returns the tree of the value at `key` of the current one."""
        self.path.append(key)
        if len(self.path) > MAX_DEPTH:
            raise unsavable(
                self.path[:5], value, f"nested deeper than {MAX_DEPTH} levels, or contains itself"
            )
        if type(value) in OBJECTS:
            self.met_objects = True
        node = self._shared(value) if id(value) in self._repeated else self._child(value)
        self.path.pop()
        return node

    def _child(self, value: Any) -> Any:
        node = self.node(value)
        return node if self._replace is None else self._replace(tuple(self.path), value, node)

    def _shared(self, value: Any) -> dict[str, Any]:
        """Returns the tree of an object that is met twice: its own the first time, then its number."""
        known = self._numbers.get(id(value))
        if id(value) in self._open:
            raise unsavable(self.path[:5], value, f"a {type(value).__name__} that contains itself")
        if known is not None:
            return {"same": known}
        number = self._numbers[id(value)] = len(self._numbers)
        self._open.add(id(value))
        node = self._child(value)
        self._open.remove(id(value))
        return {"shared": [number, node]}

    def instance(self, value: Any) -> dict[str, Any]:
        """Returns the tree of a named tuple or a dataclass instance; names of fields come once per class."""
        name, fields = classes.name_of(type(value)), classes.fields_of(value)
        first = name not in self._classes or not isinstance(value, tuple)
        self._classes.add(name)
        self.met_objects |= not isinstance(value, tuple)
        nodes = [self.child(field, item) for field, item in fields.items()]
        tag = "named tuple" if isinstance(value, tuple) else "dataclass"
        return {tag: [name, [*fields] if first else None, nodes]}

    def items(self, values: Sequence[Any] | deque[Any]) -> list[Any]:
        if set(map(type, values)) == {int} and min(values) >= -SMALL and max(values) < SMALL:
            return list(values)  # the state of Python's generator is 625 of them
        return [self.child(number, value) for number, value in enumerate(values)]

    def pairs(self, mapping: Mapping[Any, Any]) -> list[Any]:
        """Returns the trees of keys and values in turn."""
        flat: list[Any] = []
        for key, value in mapping.items():
            if not _is_key(key):
                raise unsavable([*self.path, f"<key {type(key).__name__}>"], key)
            # A key is no part of the walk: the items of a tuple have no paths
            encoder = Encoder() if type(key) is tuple else self
            flat += (encoder.node(key), self.child(key, value))
        return flat

    def ordered(self, value: OrderedDict[Any, Any]) -> dict[str, Any]:
        """Returns the tree of an OrderedDict and its attributes."""
        # A module's state_dict carries the version of each module in the attribute `_metadata`.
        return {"ordered": [self.pairs(value), self.child("__dict__", vars(value)) if vars(value) else None]}

    def defaults(self, value: defaultdict[Any, Any]) -> dict[str, Any]:
        """Returns the tree of a defaultdict; its factory is one of FACTORIES."""
        factory = value.default_factory
        if factory is not None and FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
            raise unsavable([*self.path, "default_factory"], factory)
        return {"default": [factory and factory.__name__, self.pairs(value)]}

    def members(self, value: Iterable[Any]) -> list[Any]:
        """Returns the trees of a set."""
        # Sorted, since the order of a set of strings differs from process to process.
        return sorted((self.child(f"<{item!r}>", item) for item in value), key=repr)

    def tensor(self, value: torch.Tensor) -> dict[str, Any]:
        """Adds a tensor; tied ones once. Returns its node."""
        if value.layout is not torch.strided or value.is_nested or value.is_quantized or value.is_meta:
            kind = "nested" if value.is_nested else "quantized" if value.is_quantized else value.layout
            raise unsavable(self.path, value, f"a {'meta' if value.is_meta else kind} tensor")
        memory = (value.untyped_storage().data_ptr(), value.device, value.storage_offset())
        view = (value.shape, value.stride(), value.dtype, value.is_conj(), value.is_neg())
        name = self.names.get(memory + view)
        if name is None:
            name = self.names[memory + view] = self.add(value.detach())
        self.names_by_path[tuple(self.path)] = name
        return {"tensor": name}

    def sharded(self, value: torch.Tensor) -> dict[str, Any]:
        """Adds a DTensor, with the node of a tensor: the tree is that of any layout. Returns its node."""
        if is_whole(value):
            return self.tensor(local(value))
        storage = local(value).untyped_storage().data_ptr()
        key = (storage or id(value), local(value).storage_offset(), value.shape, value.dtype)  # 0: no rows
        name = self.names.get(key)
        if name is None:
            name = self.names[key] = self.add(value.detach())
        self.names_by_path[tuple(self.path)] = name
        return {"tensor": name}

    def array(self, value: np.ndarray) -> dict[str, Any]:
        if value.dtype.kind in "OV" or not value.dtype.itemsize:
            raise unsavable(self.path, value, f"a NumPy array of dtype {value.dtype}")
        order: Any = "F" if value.flags.fnc else "C"  # sums follow the memory order
        if not value.flags.forc and are_near(value.shape, value.strides, value.itemsize):
            order = list(value.strides)
        name = self.add(_tensor_of(np.array(value, order="C")))
        self.names_by_path[tuple(self.path)] = name
        return {"array": [name, value.dtype.str, list(value.shape), order]}

    def add(self, tensor: torch.Tensor) -> str:
        """Adds `tensor` under the dotted path, made unique; returns this name. Identity is in the tree."""
        dotted = ".".join(map(str, self.path)).encode("utf-8", "replace").decode() or "value"
        name, number = dotted, 1
        # The one name that safetensors keeps for itself
        while name in self.tensors or name == "__metadata__":
            name, number = f"{dotted}#{number}", number + 1
        self.tensors[name] = tensor
        return name


def _is_key(key: Any) -> bool:
    if type(key) is tuple:
        return all(map(_is_key, key))
    return type(key) in KEYS or constants.is_constant(key)


def _float(_: Encoder, value: float) -> Any:
    bits = struct.pack(">d", value)
    return value if value - value == 0 else {"float": bits.hex()}


def _str(_: Encoder, value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates, as in the names of files with odd bytes
        return {"str": value.encode("utf-8", "surrogatepass").hex()}
    return value


def _tensor_of(array: np.ndarray) -> torch.Tensor:
    """Returns `array` (C order, its own memory) as a tensor, or its bytes where torch has no such dtype."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return torch.from_numpy(array.reshape(-1).view(np.uint8))


def _to_array(body: list[Any], known: _Known) -> np.ndarray:
    name, text, shape, order = body
    raw, dtype = known.tensors[name].numpy().reshape(-1).view(np.uint8), _to_numpy_dtype(text)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != raw.nbytes:
        raise ValueError(f"an array of shape {shape} and dtype {text} over {raw.nbytes} bytes")
    array = np.ndarray(shape, dtype, buffer=raw)
    if isinstance(order, list):
        return with_strides(array, order)
    return np.asfortranarray(array) if order == "F" else array


def _to_shared(body: list[Any], known: _Known) -> Any:
    number, node = body
    value = known.shared[number] = _decode(node, known)
    return value


def _to_instance(body: list[Any], known: _Known, base: type) -> Any:
    name, fields, nodes = body
    if fields is not None:
        known.classes[name] = classes.find(name, fields, base), fields
    kind, names = known.classes[name]
    return classes.make(kind, dict(zip(names, [_decode(node, known) for node in nodes], strict=True)))


def _to_numpy_dtype(text: str) -> np.dtype:
    dtype = np.dtype(text)
    # Of dtype O the bytes would be taken for addresses of objects; without bytes any shape would fit.
    if dtype.kind in "OV" or not dtype.itemsize:
        raise ValueError(f"an array of dtype {text}")
    return dtype


def _to_dtype(name: str, _: Any) -> torch.dtype:
    dtype = vars(torch)[name]
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch.{name} is no dtype")
    return dtype


def _to_pairs(flat: list[Any], known: _Known) -> list[tuple[Any, Any]]:
    nodes = [_decode(node, known) for node in flat]
    return list(zip(nodes[::2], nodes[1::2], strict=True))


_POSITIONS = {"MT19937": ("pos", 624), "Philox": ("buffer_pos", 4)}


def _checked(value: Any) -> Any:
    """Returns `value`; raises ValueError for a generator's state with which NumPy would leave its memory."""
    name, position = None, 0
    if isinstance(value, tuple) and len(value) > 2 and isinstance(value[0], str):
        name, position = value[0], value[2]
    elif isinstance(value, dict) and "bit_generator" in value:
        name = value["bit_generator"]
        key = _POSITIONS.get(name, ("", 0))[0]
        position = {**value["state"], **value}.get(key, 0)
    if name in _POSITIONS and not (type(position) is int and 0 <= position <= _POSITIONS[name][1]):
        raise ValueError(f"position {position!r} of a {name}")
    return value


def _to_ordered(body: list[Any], known: _Known) -> OrderedDict[Any, Any]:
    value = OrderedDict(_to_pairs(body[0], known))
    vars(value).update(_decode(body[1], known) or {})
    return value


_ENCODERS: dict[type, Callable[[Encoder, Any], Any]] = {
    NoneType: lambda _, value: value,
    bool: lambda _, value: value,
    int: lambda _, value: value if -SMALL <= value < SMALL else {"int": hex(value)},
    float: _float,
    complex: lambda _, value: {"complex": [_float(_, value.real), _float(_, value.imag)]},
    str: _str,
    bytes: lambda _, value: {"bytes": value.hex()},
    bytearray: lambda _, value: {"bytearray": value.hex()},
    list: lambda encoder, value: encoder.items(value),
    tuple: lambda encoder, value: {"tuple": encoder.items(value)},
    deque: lambda encoder, value: {"deque": [encoder.items(value), value.maxlen]},
    set: lambda encoder, value: {"set": encoder.members(value)},
    frozenset: lambda encoder, value: {"frozenset": encoder.members(value)},
    dict: lambda encoder, value: {"dict": encoder.pairs(value)},
    Counter: lambda encoder, value: {"counter": encoder.pairs(value)},
    OrderedDict: Encoder.ordered,
    defaultdict: Encoder.defaults,
    torch.Size: lambda _, value: {"size": list(value)},
    torch.dtype: lambda _, value: {"dtype": str(value).removeprefix("torch.")},
    torch.device: lambda _, value: {"device": str(value)},
    np.ndarray: Encoder.array,
    **dict.fromkeys(TENSORS, Encoder.tensor),
    **dict.fromkeys(
        set(np.sctypeDict.values()) - {np.object_, np.void},
        lambda _, value: {"scalar": [value.dtype.str, value.tobytes().hex()]},
    ),
    np.str_: lambda _, value: {"np.str": _str(_, value[:])},
    np.bytes_: lambda _, value: {"np.bytes": value.hex()},
}

_DECODERS: dict[str, Callable[[Any, _Known], Any]] = {
    "int": lambda body, _: int(body, 16),
    "float": lambda body, _: struct.unpack(">d", bytes.fromhex(body))[0],
    "complex": lambda body, known: complex(*_decode(body, known)),
    "str": lambda body, _: bytes.fromhex(body).decode("utf-8", "surrogatepass"),
    "bytes": lambda body, _: bytes.fromhex(body),
    "bytearray": lambda body, _: bytearray.fromhex(body),
    "tuple": lambda body, known: _checked(tuple(_decode(body, known))),
    "deque": lambda body, known: deque(_decode(body[0], known), body[1]),
    "set": lambda body, known: set(_decode(body, known)),
    "frozenset": lambda body, known: frozenset(_decode(body, known)),
    "dict": lambda body, known: _checked(dict(_to_pairs(body, known))),
    "counter": lambda body, known: Counter(dict(_to_pairs(body, known))),
    "ordered": _to_ordered,
    "default": lambda body, known: defaultdict(body[0] and FACTORIES[body[0]], _to_pairs(body[1], known)),
    "size": lambda body, _: torch.Size(body),
    "dtype": _to_dtype,
    "device": lambda body, _: torch.device(body),
    "tensor": lambda body, known: known.tensors[body],
    "shared": _to_shared,
    "same": lambda body, known: known.shared[body],
    "constant": lambda body, known: constants.made(*_decode(body, known)),
    "named tuple": lambda body, known: _to_instance(body, known, tuple),
    "dataclass": lambda body, known: _to_instance(body, known, object),
    "array": _to_array,
    "scalar": lambda body, _: np.frombuffer(bytes.fromhex(body[1]), _to_numpy_dtype(body[0]))[0],
    "np.str": lambda body, known: np.str_(_decode(body, known)),
    "np.bytes": lambda body, _: np.bytes_(bytes.fromhex(body)),
}
