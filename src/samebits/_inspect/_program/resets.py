"""Uses of an object that overwrite all its contents: `x.clear()`, `x[:] = y`, `np.add(a, b, out=x)`."""

from __future__ import annotations

import dis
from collections.abc import Sequence

from samebits._inspect._program.bytecode import ATTRIBUTES
from samebits._inspect._program.stack import count, keywords, use

_ARGUMENTS = {
    "clear": {0},
    "zero_": {0},
    "fill_": {1},
    "fill": {1},
    "copy_": {1, 2},
    "manual_seed": {1},
    "seed": {1},
    "set": {1},
    "normal_": {0, 1, 2, 3},
    "uniform_": {0, 1, 2, 3},
}
"""Methods of containers, tensors, arrays, generators and context variables that overwrite all that the object holds, with
their numbers of arguments. `seed()` takes the seed from the machine, so it is none.
"""
_REWINDS = {"seek": "truncate", "truncate": "seek"}
"""Methods that together empty a file in memory: `truncate(0)` with `seek(0)`, or `truncate()` after `seek(0)`."""
_LIBRARIES = {"np", "numpy", "torch"}
"""Libraries whose functions overwrite their argument `out`."""
_LOADS_NAME = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF")

_SIMPLE = ("LOAD_CONST", *_LOADS_NAME, "LOAD_SMALL_INT")
_WHOLE = (None, Ellipsis, slice(None, None, None))


def end_of_reset(items: Sequence[dis.Instruction], at: int, above: int = 0) -> int | None:
    """Returns the number of the instruction that overwrites the object loaded at `at`; None if it is used otherwise.

    The values loaded in between are read before the object is overwritten.
    """
    taken = use(items, at, above)
    if taken is None:
        return None
    opname = items[taken.at].opname
    if opname.startswith(ATTRIBUTES):
        return _end_of_method(items, at, taken.at)
    if opname in {"STORE_SUBSCR", "STORE_SLICE"}:
        return taken.at if _is_whole(items[at + 1 : taken.at]) else None
    given = keywords(items, taken.at) if taken.keyword(items) == "out" else ("where",)
    return taken.at if "where" not in given and _is_librarys(items, at, taken.at) else None


def _is_whole(key: Sequence[dis.Instruction]) -> bool:
    """Returns True for the keys of `x[:]` and `x[...]`."""
    return all(
        item.opname == "BUILD_SLICE" or (item.opname == "LOAD_CONST" and item.argval in _WHOLE)
        for item in key
    )


def _end_of_method(items: Sequence[dis.Instruction], at: int, attribute: int) -> int | None:
    name, called = items[attribute].argval, use(items, attribute)
    if called is None or not called.is_called(items):
        return None
    given = count(items, called.at)
    if name in _REWINDS:
        return called.at if _is_emptied(items, at, attribute, called.at) else None
    if name == "reset" and "seed" in keywords(items, called.at):  # a gymnasium environment
        return called.at
    return called.at if given in _ARGUMENTS.get(name, ()) else None


def _is_emptied(items: Sequence[dis.Instruction], at: int, attribute: int, call: int) -> bool:
    """Returns True for `x.seek(0)` with `x.truncate()` as the next use of `x`, and for `x.truncate(0)` with `x.seek(0)`."""
    other = _REWINDS[items[attribute].argval]
    if count(items, call) != 1 or items[attribute + 1].argval != 0:
        return False
    same = [n for n in range(call, min(call + 8, len(items))) if items[n].argval == items[at].argval]
    after = same[0] + 1 if same else 0
    if not same or after + 1 >= len(items) or items[after].argval != other:
        return False
    called = use(items, after)
    if called is None or not called.is_called(items):
        return False
    given = count(items, called.at)
    return given == 0 if other == "truncate" else given == 1 and items[after + 1].argval == 0


def _is_librarys(items: Sequence[dis.Instruction], at: int, call: int) -> bool:
    """Returns True if the function of a call is one of numpy's or torch's."""
    for number in range(at - 1, max(-1, at - 40), -1):
        if items[number].opname.startswith(_LOADS_NAME) and items[number].argval in _LIBRARIES:
            last = number
            while items[last + 1].opname.startswith(ATTRIBUTES):
                last += 1
            taken = use(items, last)
            return last > number and taken is not None and taken.at == call and taken.is_called(items)
    return False


def is_filled(items: Sequence[dis.Instruction], at: int) -> bool:
    """Returns True for `container[key] = ...` with a simple key, where `at` loads the container."""
    if at + 2 >= len(items):
        return False
    return items[at + 1].opname.startswith(_SIMPLE) and items[at + 2].opname == "STORE_SUBSCR"
