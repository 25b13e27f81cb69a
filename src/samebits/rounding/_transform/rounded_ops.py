"""One op of a lowered graph: its functional form in float32, its results rounded, its writes copied back.

16-bit inputs are widened, which is exact. Writes go to a float32 copy, which is rounded into the memory of
the original, whether or not that is a view. So nothing is lost on the way back, and all tensors that share
that memory see the update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import Work
from torch.fx import Node
from torch.utils import _pytree as pytree

from samebits._context import Words
from samebits.errors import UnimplementedError
from samebits.random import _int_keys as int_keys
from samebits.replica._analysis.op_rules import is_collective
from samebits.replica._analysis.op_schemas import signature
from samebits.rounding._stochastic_round import round_into, round_to_new
from samebits.rounding._transform.lowering_rules import HALVES, written_tensors

Place = tuple[str | int, int]
"""A result, by number, or a written tensor, by argument and place in its list."""


@dataclass(frozen=True)
class _ResultForm:
    """Dtype and strides of a result when the step was captured."""

    dtype: torch.dtype
    strides: tuple[int, ...] | None
    """None if tracing does not know them."""


class Rounded(nn.Module):
    """Computes an op in float32 and rounds by `fold_in(the graph's stream, op, class of this rank)`."""

    def __init__(self, node: Node, position: str, classes: Mapping[Place, int]) -> None:
        super().__init__()
        self.target: Any = node.target
        self.what = f"{node.name} = {node.target}"
        known = signature(self.target)
        self._waits = is_collective(node)
        self._written = {name for name, _ in written_tensors(node)}
        self._at = {known.position[name]: name for name in self._written}
        self._keys: dict[Place, tuple[int, int]] = {
            place: (int_keys.as_uint64(f"{position}/{place[0]}.{place[1]}"), label)
            for place, label in classes.items()
        }
        leaves = pytree.tree_leaves(node.meta.get("val"))
        self._results = [_result(leaf) for leaf in leaves]

    def extra_repr(self) -> str:
        """The op."""
        return self.what

    def forward(self, stream: Words, *args: Any, **kwargs: Any) -> Any:
        """Returns the results of the op, rounded; its writes are rounded in place."""
        copies: list[tuple[torch.Tensor, torch.Tensor, Place]] = []
        wide: dict[int, torch.Tensor] = {}
        values = [
            _copy_writes(one, self._at[index], copies) if index in self._at else _widen(one, wide)
            for index, one in enumerate(args)
        ]
        named = {
            name: _copy_writes(one, name, copies) if name in self._written else _widen(one, wide)
            for name, one in kwargs.items()
        }
        try:
            found = self.target(*values, **named)
        except (RuntimeError, TypeError) as error:
            error.add_note(f"samebits.rounding.lower: while {self.what} was computed in float32")
            raise
        if self._waits:
            found = _wait(found)
        for original, copy, place in copies:
            round_into(original, copy, self._key(stream, place, original))
        originals = {id(copy): original for original, copy, _ in copies}
        return self._narrow(stream, found, originals, iter(range(len(self._results))))

    def _narrow(self, stream: Words, found: Any, originals: Mapping[int, torch.Tensor], numbers: Any) -> Any:
        if isinstance(found, (list, tuple)):
            return type(found)([self._narrow(stream, one, originals, numbers) for one in found])
        number = next(numbers, None)
        if not isinstance(found, torch.Tensor) or id(found) in originals or number is None:
            return originals.get(id(found), found)
        result = self._results[number]
        if result is None or result.dtype not in HALVES:
            return found
        if found.dtype in HALVES:
            raise UnimplementedError(
                f"samebits.rounding.lower: {self.what} returns {found.dtype} for float32 inputs, so nothing "
                "can be rounded; if it computes nothing: lower(step, "
                f"rules={{{signature(self.target).name!r}: 'as it is'}})."
            )
        narrow = round_to_new(found.float(), result.dtype, self._key(stream, (number, 0), found))
        if result.strides is None or narrow.stride() == result.strides:
            return narrow
        return torch.empty_strided(
            narrow.shape, result.strides, dtype=narrow.dtype, device=narrow.device
        ).copy_(narrow)

    def _key(self, stream: Words, place: Place, like: torch.Tensor) -> torch.Tensor:
        return int_keys.to_tensor(int_keys.fold(stream, *self._keys[place]), like.device)


class Waited(nn.Module):
    """A collective that is complete when it returns: a captured graph has no node that waits for it."""

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.target: Any = node.target

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the op and waits for it."""
        return _wait(self.target(*args, **kwargs))


def _result(leaf: Any) -> _ResultForm | None:
    if not isinstance(leaf, torch.Tensor):
        return None
    static = all(isinstance(one, int) for one in leaf.stride())
    return _ResultForm(leaf.dtype, leaf.stride() if static else None)


def _widen(values: Any, widened: dict[int, torch.Tensor]) -> Any:
    """Returns inputs in float32; a tensor that occurs twice is widened once."""
    if isinstance(values, torch.Tensor):
        if values.dtype not in HALVES:
            return values
        if id(values) not in widened:
            widened[id(values)] = values.float()
        return widened[id(values)]
    if isinstance(values, (list, tuple)):
        return [_widen(one, widened) for one in values]
    return torch.float32 if isinstance(values, torch.dtype) and values in HALVES else values


def _copy_writes(values: Any, name: str, copies: list[Any], index: int = 0) -> Any:
    """Returns written arguments: float32 copies of 16-bit ones, noted in `copies`; others unchanged."""
    if isinstance(values, (list, tuple)):
        return [_copy_writes(one, name, copies, number) for number, one in enumerate(values)]
    if not isinstance(values, torch.Tensor) or values.dtype not in HALVES:
        return values
    copies.append((values, values.float(), (name, index)))
    return copies[-1][1]


def _wait(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return torch.ops._c10d_functional.wait_tensor(found)
    if isinstance(found, (list, tuple)):
        return type(found)([_wait(one) for one in found])
    if isinstance(found, torch.ScriptObject):
        Work.unbox(found).wait()
    return found
