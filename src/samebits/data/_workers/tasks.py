"""Tasks of stages that come in pieces: the elements of one task, and the states after them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from samebits.data._stages.stage import Addressed, Blocks, Reader, Stage, State, Task
from samebits.errors import PipelineMismatchError


def elements(
    stage: Blocks, task: Task, computed: deque[Any], start: tuple[int, int]
) -> Iterator[tuple[Any, State]]:
    """Yields the elements of a computed task from the place `start` on, each with the state after it; keeps none that it has given."""
    first, done = start
    if isinstance(stage, Addressed):
        for ordinal in range(task[0], task[0] + len(computed)):
            if ordinal >= first:
                yield computed.popleft(), ordinal + 1
            else:
                computed.popleft()
        return
    for ordinal in range(task[0], task[0] + len(computed)):
        group = deque(computed.popleft())
        for number in range(len(group)):
            if (ordinal, number) >= (first, done):
                yield group.popleft(), [ordinal, number + 1] if group else ordinal + 1
            else:
                group.popleft()


def read_one(reader: Reader, stage: Stage, repetition: int, state: State) -> Any:
    """Returns the element after `state`; of blocks, only its own group is computed."""
    if not isinstance(stage, Blocks):
        return next(iter(reader.read(stage, repetition, state)))[0]
    start = place(state)
    for number in range(start[0], stage.groups):
        task = (number, number + 1)
        for element, _ in elements(stage, task, deque(stage.compute(repetition, task)), start):
            return element
    raise PipelineMismatchError(
        f"Pipeline: {stage.describe()} has no element after {state}; has its source changed?"
    )


def place(state: State) -> tuple[int, int]:
    """Returns the next group, and how many of its elements have been delivered."""
    if state is None:
        return 0, 0
    return (state, 0) if isinstance(state, int) else tuple(state)
