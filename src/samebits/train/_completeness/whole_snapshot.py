"""The state that a commit's note describes: more than the check looks at, by content, alike in each process.

A check compares two moments of one process, so a large tensor may count by its writes and its address. A note
is compared with another process: tensors count by their bits. Besides what a check reads, it has the locals
of all the user's functions that are under way, those that only the code after the loop reads, and counters
and generators of installed packages' modules and closures.
"""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
import xxhash

from samebits import _digest as digest
from samebits._inspect.user_code import is_output_package, keeps_attributes, owner_of_file, owner_of_module
from samebits._objects.hashes import PLAIN, leaf, plain
from samebits._objects.parts import closure_of
from samebits._objects.rng_states import RESTORABLE
from samebits._objects.walk import ITEMS, of_tensor
from samebits._program import LoopFrames, Program, StoredPlace, liveness_at, release_locals
from samebits.train._completeness import kinds_of_state
from samebits.train._completeness.reachable_state import NONE, PACKAGE, Leaf, StateSnapshot

_LARGE = 1 << 24
"""Bytes from which on a tensor counts by a sample of 65,536 elements."""
_COUNTERS = (int, float, itertools.count, *RESTORABLE)


class WholeSnapshot(StateSnapshot):
    """A snapshot for a note."""

    def __init__(self) -> None:
        super().__init__()
        self.action_of = _action_of
        self._contents: set[str] = set()
        """The paths of tensors and arrays."""

    def measured(self, derived: Collection[str] = ()) -> set[str]:
        """Returns the paths of values that are compared even if they are as when the loop began.

        The program's tensors, arrays and floats; what is in a loader; variables that are `derived` from the
        state, but for flags and texts. Other values may differ from process to process.
        """
        return {
            path
            for path, one in self.leaves_by_path.items()
            if (
                one.root in {"local", "global"}
                and not one.installed
                and (
                    type(one.value) is float
                    or path in self._contents
                    or (one.places[0].name in derived and _is_number_or_container(one))
                )
            )
            or (one.root == "loader" and (path in self._contents or one.value is None))
        }

    def is_of_loader(self, path: str) -> bool:
        """Returns True for what torch's parts of a loader hold (indices, tensors, weights), or its items."""
        one = self.leaves_by_path[path]
        return one.root == "loader" and (one.installed or not one.owners)

    def absent(self, path: str) -> Leaf | None:
        """Returns a leaf of None for an attribute that an object lacks; None if there is no object."""
        owner, _, name = path.rpartition(".")
        held = self.holders.get(owner)
        if held is None or not name.isidentifier() or self.has_parts(path):
            return None
        root, places, owners, kind = held
        inner = (*places, StoredPlace("attr", name)), (*owners, (kind, name))
        return Leaf(NONE, None, root, *inner, installed=keeps_attributes(kind))

    def has_parts(self, path: str) -> bool:
        """Returns True for a container, which has no leaf of its own."""
        inside = f"{path}[", f"{path}.", f"len({path})"
        return any(one.startswith(inside) for one in self.leaves_by_path)

    def tensor_of_content(self, path: str, value: torch.Tensor, depth: int) -> None:
        """Adds a leaf by content, unless the commit holds its memory."""
        if kinds_of_state.of_tensor(value) not in self._saved:
            self._contents.add(path)
            self.add(path, _of_content(value))

    def array_of_content(self, path: str, value: Any, depth: int) -> None:
        """Adds one leaf, unless the commit holds its memory."""
        self._contents.add(path)
        self.uncommitted_array(path, value, depth)

    def whole_optimizer(self, path: str, value: torch.optim.Optimizer, depth: int) -> None:
        """Adds one leaf of an optimizer's state and learning rates, and walks what was hung on it."""
        self._hung_attributes(path, value, depth)
        if id(value) in self._given:
            return
        states = [state for state in value.state.values() if isinstance(state, Mapping)]
        items = [item for state in states for item in state.values()]
        rates = [leaf(group.get("lr")) for group in value.param_groups]
        # sorted: a load_state_dict puts them in the order of the parameters
        self.add(f"{path}.state", plain([*sorted(map(_of_any, items)), *rates]))

    def whole_mapping(self, path: str, value: dict[Any, Any], depth: int) -> None:
        """Walks a dict; a long one of tensors (a state_dict) is one more leaf."""
        self.mapping(path, value, depth)
        self._long(path, list(dict.values(value)))

    def whole_sequence(self, path: str, value: Any, depth: int) -> None:
        """Walks a sequence; a long one of tensors is one more leaf."""
        self.sequence(path, value, depth)
        self._long(path, list(value))

    def _long(self, path: str, items: list[Any]) -> None:
        kinds = {isinstance(item, torch.Tensor) or type(item) in PLAIN for item in items}
        if len(items) > ITEMS and kinds == {True} and any(isinstance(one, torch.Tensor) for one in items):
            self._places.append(StoredPlace("item", self._places[-1].name))
            self._value = None
            self.add(f"{path}[...]", plain([_of_any(item) for item in items]))
            self._places.pop()

    def function_and_cells(self, path: str, value: types.FunctionType, depth: int) -> None:
        """Walks a function; of one that an installed package made, the counters in its cells."""
        self.function_and_attributes(path, value, depth)
        if owner_of_file(value.__code__.co_filename) != "installed":
            return
        for name, cell in closure_of(value):
            with suppress(ValueError):  # not assigned yet
                if _is_counter(cell.cell_contents):
                    self.in_package = True
                    self.part("cell", name, f"{path}.{name}", cell.cell_contents, depth + 1)
            self.in_package = False


def further_roots(frames: LoopFrames, program: Program) -> Iterator[tuple[str, str, Any]]:
    """Yields what is read after the loop, the locals of its callers, and counters of packages."""
    names: set[str] = set()
    outer = list(_callers(frames.user[-1]))
    found = [frames.carried[1]]
    found += [_live_in(frame) for frame in outer]
    for name, value in (pair for variables in found for pair in sorted(variables.items())):
        if name not in names and kinds_of_state.may_change(value):
            names.add(name)
            yield "local", name, value
    release_locals(outer)
    for name in sorted(_packages(program)):
        for inner, value in sorted(vars(sys.modules[name]).items()):
            if _is_counter(value) and not inner.startswith("__"):
                yield PACKAGE, f"{name}.{inner}", value


def _is_number_or_container(one: Leaf) -> bool:
    """Returns True for the value of a variable, or an item of it; no flag or text, and no attribute."""
    return type(one.value) not in (bool, str) and all(place.kind != "attr" for place in one.places)


def _is_counter(value: Any) -> bool:
    return isinstance(value, _COUNTERS) and type(value) is not bool


@functools.lru_cache(maxsize=4096)
def _action_of(kind: type) -> str | None:
    """Returns the name of the method for values of a type; None if they are not read."""
    action = kinds_of_state.action_of(kind)
    return None if action is None else _OF_A_NOTE.get(action, action)


_OF_A_NOTE = {
    "uncommitted_array": "array_of_content",
    "function_and_attributes": "function_and_cells",
    "mapping": "whole_mapping",
    "optimizer": "whole_optimizer",
    "sequence": "whole_sequence",
    "uncommitted_tensor": "tensor_of_content",
}
"""The methods of `WholeSnapshot` that do more than those of a check."""


def _of_any(value: Any) -> bytes:
    return _of_content(value) if isinstance(value, torch.Tensor) else leaf(value)


def _of_content(value: torch.Tensor) -> bytes:
    """Returns the hash of a tensor's bits; of a very large one that of a sample, of a lazy one its type."""
    if torch.nn.parameter.is_lazy(value):
        return plain("lazy")
    if value.layout is not torch.strided or value.numel() * value.element_size() < _LARGE:
        return of_tensor(value)
    flat = value.detach().reshape(-1) if value.is_contiguous() else value.detach().flatten()
    sample = flat[:: max(1, flat.numel() // 65_536)].cpu()
    return xxhash.xxh3_64_digest(leaf(sample), digest.seed_of(value.dtype, value.shape))


def _callers(frame: types.FrameType) -> Iterator[types.FrameType]:
    """Yields the user's frames that wait for the function with the loop, innermost first."""
    caller = frame.f_back
    while caller is not None:
        if owner_of_file(caller.f_code.co_filename) == "user":
            yield caller
        caller = None if caller.f_globals.get("__name__") == "runpy" else caller.f_back  # a launcher


def _live_in(frame: types.FrameType) -> dict[str, Any]:
    """Returns the variables of a waiting function that it reads again before it assigns them."""
    names, found = liveness_at(frame.f_code, frame.f_lasti).after(), frame.f_locals
    return {name: found[name] for name in names if name in found}


def _packages(program: Program) -> set[str]:
    """Returns the modules of installed packages from which the user's modules imported something."""
    held = {id(item): item for module in program.modules for item in list(vars(module).values())}
    names = {
        item.__name__ if isinstance(item, types.ModuleType) else str(getattr(item, "__module__", ""))
        for item in held.values()
        if isinstance(item, types.ModuleType | types.FunctionType | type)
    }
    found = [name for name in names if name in sys.modules and owner_of_module(name) == "installed"]
    return {name for name in found if not is_output_package(name)}
