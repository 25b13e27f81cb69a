"""Higher-order ops: branches, loops, scans and calls.

The value that decides which branch a rank takes decides what it holds.
Where PopART's If reads only the branches and its Loop runs its body once, here outputs meet the partition of
the predicate (of every trip), and the carry of a loop is refined until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch.fx import Node

Generators = Mapping[str, int]
"""Partition of the state of each generator of the process."""


@dataclass(frozen=True)
class BodyOutcome:
    """The outcome of one run of a body, or of the whole op."""

    outputs: tuple[int, ...]
    operands: tuple[int, ...]
    """The partitions of the operands afterwards."""
    generators: Generators
    drawn: frozenset[str] = frozenset()
    """The generators that were drawn from."""
    reason: str = ""
    """The first thing in the body that varies although its inputs are equal."""


class Caller(Protocol):
    """The frame that runs a higher-order op."""

    control: int

    def meet(self, *partitions: int) -> int: ...

    def read_all(self, operands: Sequence[Any]) -> tuple[int, ...]:
        """Returns the partition of each operand; a plain number is equal."""
        ...

    def body(self, graph: Any, operands: Sequence[int], control: int, generators: Generators) -> BodyOutcome:
        """Runs the body that a node names."""
        ...


Handler = Callable[[Caller, Node, Generators], BodyOutcome]


def _cond(frame: Caller, node: Node, generators: Generators) -> BodyOutcome:
    predicate, yes, no, *rest = node.args
    operands = frame.read_all(rest[0] if rest else ())  # type: ignore[arg-type]
    (chosen,) = frame.read_all([predicate])
    inside = frame.meet(frame.control, chosen)
    one = frame.body(yes, operands, inside, generators)
    other = frame.body(no, operands, inside, generators)
    outputs = tuple(frame.meet(a, b, chosen) for a, b in zip(one.outputs, other.outputs, strict=True))
    drawn = one.drawn | other.drawn
    after = dict(generators)
    for name in drawn:  # moved on those ranks only that took the branch
        after[name] = frame.meet(one.generators[name], other.generators[name], chosen)
    return BodyOutcome(outputs, operands, after, drawn, one.reason or other.reason)


def _while_loop(frame: Caller, node: Node, generators: Generators) -> BodyOutcome:
    test, body, carried, additional = node.args[:4]
    fixed = frame.read_all(additional)  # type: ignore[arg-type]
    carry = frame.read_all(carried)  # type: ignore[arg-type]
    before, state, inside = (*carry, *fixed), dict(generators), frame.control
    while True:
        tested = frame.body(test, (*carry, *fixed), inside, state)
        (continues,) = tested.outputs
        inside, previous = frame.meet(inside, continues), inside
        trip = frame.body(body, (*carry, *fixed), inside, tested.generators)
        refined = tuple(frame.meet(a, b, continues) for a, b in zip(carry, trip.outputs, strict=True))
        drawn = tested.drawn | trip.drawn
        after = {
            name: frame.meet(state[name], trip.generators[name], continues) if name in drawn else state[name]
            for name in state
        }
        if (refined, after, inside) == (carry, state, previous):
            return BodyOutcome(carry, before, state, drawn, tested.reason or trip.reason)
        carry, state = refined, after


def _scan(frame: Caller, node: Node, generators: Generators) -> BodyOutcome:
    combine, init, xs, *rest = node.args
    fixed = frame.read_all(rest[0] if rest else ())  # type: ignore[arg-type]
    carry, slices = frame.read_all(init), frame.read_all(xs)  # type: ignore[arg-type]
    before, state = (*carry, *slices, *fixed), generators
    while True:
        trip = frame.body(combine, (*carry, *slices, *fixed), frame.control, state)
        refined = tuple(map(frame.meet, carry, trip.outputs))
        if (refined, trip.generators) == (carry, state):
            return BodyOutcome((*carry, *trip.outputs[len(carry) :]), before, state, trip.drawn, trip.reason)
        carry, state = refined, trip.generators


def _associative_scan(frame: Caller, node: Node, generators: Generators) -> BodyOutcome:
    combine, xs, *rest = node.args
    fixed = frame.read_all(rest[0] if rest else ())  # type: ignore[arg-type]
    values = frame.read_all(xs)  # type: ignore[arg-type]
    before, state = (*values, *fixed), generators
    while True:
        trip = frame.body(combine, (*values, *values, *fixed), frame.control, state)
        refined = tuple(map(frame.meet, values, trip.outputs))
        if (refined, trip.generators) == (values, state):
            return BodyOutcome(values, before, state, trip.drawn, trip.reason)
        values, state = refined, trip.generators


def _call(frame: Caller, node: Node, generators: Generators) -> BodyOutcome:
    body, _, *operands = node.args
    return frame.body(body, frame.read_all(operands), frame.control, generators)


HANDLERS: dict[str, Handler] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "while_loop_stack_output": _while_loop,
    "scan": _scan,
    "associative_scan": _associative_scan,
    "invoke_subgraph": _call,
}
"""Handlers by the name of the op. The outputs of any other op vary, and the report names it."""


def operands_of(node: Node) -> list[Any]:
    """Returns the operands of a higher-order op, in the order in which its body takes them."""
    name, args = str(node.target), node.args
    if name == "invoke_subgraph":
        return list(args[2:])
    lists = args[{"cond": 3, "associative_scan": 1}.get(name, 2 if name.startswith("while") else 1) :]
    return [one for listed in lists for one in listed]  # type: ignore[union-attr]
