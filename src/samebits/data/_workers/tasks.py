"""Tasks of stages that come in pieces: the ordinals of one task, and the states after its elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from samebits.data._stages.batch_stages import Batch
from samebits.data._stages.stage import Addressed, Blocks, Reader, Stage, State
from samebits.errors import PipelineMismatchError

BLOCK = 64
"""Elements of a task where the stage has no batches. Tasks begin at multiples of it, so that a dataset that reads a
block at once (`__getitems__`) finds the same blocks wherever reading starts."""

Task = tuple[int, int]
"""First ordinal and the one after the last, within one repetition."""


def tasks(stage: Blocks, state: State) -> Iterator[Task]:
    """Yields the tasks of one repetition from `state` on."""
    size = task_size(stage)
    first, _ = place(state)
    groups = stage.groups
    for start in range(first // size * size, groups, size):
        yield start, min(start + size, groups)


def task_size(stage: Stage) -> int:
    """Returns the groups of one task: one if the stage makes batches or maps them."""
    return 1 if _has_batches(stage) else BLOCK


def _has_batches(stage: Stage) -> bool:
    return isinstance(stage, Batch) or any(map(_has_batches, stage.inputs))


def compute(stage: Blocks, repetition: int, task: Task) -> list[Any]:
    """Returns the results of a task: elements of an addressed stage, groups of a grouped one."""
    ordinals = np.arange(*task, dtype=np.int64)
    if repetition:
        ordinals += repetition * stage.groups
    return stage.fetch(ordinals) if isinstance(stage, Addressed) else stage.block(ordinals)


def elements(stage: Blocks, task: Task, computed: list[Any], state: State) -> Iterator[tuple[Any, State]]:
    """Yields the elements of a computed task after `state`, each with the state after it."""
    first, done = place(state)
    if isinstance(stage, Addressed):
        for ordinal, element in enumerate(computed, task[0]):
            if ordinal >= first:
                yield element, ordinal + 1
        return
    for ordinal, group in enumerate(computed, task[0]):
        if ordinal < first:
            continue
        for number in range(done if ordinal == first else 0, len(group)):
            over = number + 1 == len(group)
            yield group[number], ordinal + 1 if over else [ordinal, number + 1]


def read_one(reader: Reader, stage: Stage, repetition: int, state: State) -> Any:
    """Returns the element after `state`; of blocks, only its own group is computed."""
    if not isinstance(stage, Blocks):
        return next(iter(reader.read(stage, repetition, state)))[0]
    first, _ = place(state)
    for start in range(first, stage.groups):
        task = (start, start + 1)
        for element, _ in elements(stage, task, compute(stage, repetition, task), state):
            return element
    raise PipelineMismatchError(
        f"Pipeline: {stage.describe()} has no element after {state}; has its source changed?"
    )


def place(state: State) -> tuple[int, int]:
    """Returns the next group, and how many of its elements have been delivered."""
    if state is None:
        return 0, 0
    return (state, 0) if isinstance(state, int) else tuple(state)
