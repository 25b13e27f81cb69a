"""Reading in this process, one task when it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from samebits.data.engine.blocks import compute, elements, one, tasks
from samebits.data.scope import Draws
from samebits.data.stage import Blocks, Stage, State, Streamed


class Inline:
    """Reads a bound pipeline in the process and thread that asks for its elements."""

    def __init__(self, draws: Draws) -> None:
        self._draws = draws

    def read(self, stage: Stage, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        """The elements of a bound stage from `state` on, each with the state behind it."""
        if isinstance(stage, Streamed):
            return stage.stream(self, repetition, state)
        assert isinstance(stage, Blocks)
        return self._blocks(stage, repetition, state)

    def one(self, stage: Stage, repetition: int, state: State) -> Any:
        """The element that lies behind `state`, read again, in this process."""
        return one(self, stage, repetition, state)

    def _blocks(self, stage: Blocks, repetition: int, state: State) -> Iterator[tuple[Any, State]]:
        for task in tasks(stage, state):
            computed = self._draws.run(lambda task=task: one_thread(compute, stage, repetition, task))
            yield from elements(stage, task, computed, state)


def one_thread(function: Any, *arguments: Any) -> Any:
    """As in a worker: a large sum has other bits with more threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return function(*arguments)
    finally:
        torch.set_num_threads(threads)
