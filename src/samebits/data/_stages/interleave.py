"""`interleave`: several inner streams open at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from samebits.data._calls.user_function import Function
from samebits.data._stages.stage import Reader, Stage, State, Streamed
from samebits.random import _int_keys as int_keys

Branch = tuple[Iterator[tuple[Any, State]], State, int, State]
"""The iterator, the input's state before its element, that element's number, and the state of the branch."""


class Interleave(Streamed):
    """`block_length` elements of each of `cycle_length` inner streams in turn, as tf.data's.

    State: [the input's, elements opened, turn in the cycle, elements of the block, [reference, number, state] of each
    open branch, or None where the input had no more].
    """

    kind = "interleave"

    def __init__(
        self,
        stage: Stage,
        function: Function,
        cycle_length: int,
        block_length: int,
        as_stage: Callable[[Any], Stage],
    ) -> None:
        super().__init__(stage)
        self.function, self.cycle_length, self.block_length = function, cycle_length, block_length
        self._as_stage = as_stage

    @property
    @override
    def length(self) -> int | None:
        return None

    @override
    def parameters(self) -> dict[str, Any]:
        return {
            "function": self.function.name, "cycle_length": self.cycle_length, "block_length": self.block_length
        }  # fmt: skip

    @override
    def stream(self, reader: Reader, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        before, opened, turn, done, saved = state or (None, 0, 0, 0, [])
        branches: list[Branch | None] = [one and self._reopen(reader, repetition, *one) for one in saved]
        arriving = reader.read(self.inputs[0], repetition, before)
        while True:
            if len(branches) <= turn < self.cycle_length or (turn < len(branches) and branches[turn] is None):
                found = next(arriving, None)
                if found is not None:
                    branch = self._open(reader, repetition, found[0], before, opened, None)
                    branches[turn : turn + 1] = [branch]
                    before, opened = found[1], opened + 1
            if not any(branches):
                return
            branch = branches[turn] if turn < len(branches) else None
            advanced = next(branch[0], None) if branch is not None else None
            if branch is not None and advanced is not None:
                branches[turn] = (*branch[:3], advanced[1])
                done += 1
                if done == self.block_length:
                    turn, done = (turn + 1) % self.cycle_length, 0
                yield (
                    advanced[0],
                    [before, opened, turn, done, [one and list(one[1:]) for one in branches]],
                )
            elif branch is not None:
                branches[turn] = None  # it has ended: the input's next element replaces it, in this turn
                done = 0
            else:
                turn, done = (turn + 1) % self.cycle_length, 0

    def _reopen(self, reader: Reader, repetition: int, before: State, number: int, state: State) -> Branch:
        return self._open(
            reader, repetition, reader.read_one(self.inputs[0], repetition, before), before, number, state
        )

    def _open(
        self, reader: Reader, repetition: int, element: Any, before: State, number: int, state: State
    ) -> Branch:
        inner = self.function.call_each(self.key, [(repetition, number)], [element])[0]
        stage = self._as_stage(inner).bind(int_keys.fold(self.key, "branch", repetition, number))
        return reader.read(stage, 0, state), before, number, state
