"""The names in code objects: of global variables and attributes, read from the bytes without `dis`."""

from __future__ import annotations

import dis
import functools
import sys
from collections.abc import Iterator
from types import CodeType

_READS = frozenset(
    dis.opmap[name] for name in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap
)
_WRITES = frozenset({dis.opmap["STORE_GLOBAL"]})
_ASSIGNS = frozenset({dis.opmap["STORE_ATTR"]})
_STORE_SUBSCR = dis.opmap["STORE_SUBSCR"]
_VARIABLES = frozenset(code for name, code in dis.opmap.items() if name.endswith(("_GLOBAL", "_NAME")))
_ATTRIBUTES = frozenset(code for name, code in dis.opmap.items() if name.endswith(("_ATTR", "_METHOD")))
_FLAGS = {"LOAD_GLOBAL": 1, **({"LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2} if sys.version_info >= (3, 12) else {})}
_FLAG_BITS = {dis.opmap[name]: bits for name, bits in _FLAGS.items()}
"""The lowest bits of the argument of an instruction that are flags, and no part of the name's number."""


def inner(code: CodeType) -> Iterator[CodeType]:
    """Yields the functions, lambdas and comprehensions written directly inside a function."""
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def whole(code: CodeType) -> Iterator[CodeType]:
    """Yields a function and the functions written inside it, at any depth."""
    yield code
    for one in inner(code):
        yield from whole(one)


def names(code: CodeType) -> Iterator[str]:
    """Yields names of outer variables and attributes that a function, or one inside it, may look up."""
    return (name for one in whole(code) for name in one.co_names)


@functools.lru_cache(maxsize=16384)
def globals_read(code: CodeType) -> frozenset[str]:
    """Returns the names that a code object reads as global variables; `co_names` also has attributes."""
    return frozenset(_names_of(code, _READS))


@functools.lru_cache(maxsize=16384)
def globals_written(code: CodeType) -> frozenset[str]:
    return frozenset(_names_of(code, _WRITES))


@functools.lru_cache(maxsize=16384)
def attributes_assigned(code: CodeType) -> frozenset[str]:
    return frozenset(_names_of(code, _ASSIGNS))


def assigns_items(code: CodeType) -> bool:
    """Returns True if a code object assigns an item of something: `x[k] = v`."""
    return _STORE_SUBSCR in code.co_code[::2]


def _names_of(code: CodeType, opcodes: frozenset[int]) -> Iterator[str]:
    """Yields the names that these instructions name. `dis` makes objects, and takes quadratic time."""
    wide = 0
    for opcode, given in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        number = given | wide
        wide = number << 8 if opcode == dis.EXTENDED_ARG else 0
        if opcode in opcodes:
            yield code.co_names[number >> _FLAG_BITS.get(opcode, 0)]


def names_in(code: CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the global variables and the attributes that a function's code names, with inner functions."""
    codes = list(whole(code))
    used = dict.fromkeys(name for one in codes for name in _names_of(one, _VARIABLES))
    attributes = dict.fromkeys(name for one in codes for name in _names_of(one, _ATTRIBUTES))
    return tuple(used), tuple(attributes)
