"""`check`: reads a pipeline in several ways and names the first element that differs, and the function that causes it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from samebits.data._calls.forked_call import call_in_fork
from samebits.data._calls.process_generators import Draws
from samebits.data._pipeline import Pipeline
from samebits.data._rolling_digest import update_digest
from samebits.data._stages.stage import Addressed, Stage
from samebits.determinism._warn_once import warn_once
from samebits.errors import InvalidArgumentError, PipelineDifferenceError


def check(
    pipeline: Pipeline, workers: Sequence[int] = (0, 2, 3), *, resume_at: int | None = None, count: int = 200
) -> str:
    """Reads the first `count` elements again, with each number of workers, and resumed after element `resume_at`.

    Each reading is in a process forked off this one, so that a function remembers nothing from another reading.

    Returns:
        The digest of these elements, the same for all ways of reading.

    Raises:
        PipelineDifferenceError: two ways give different elements. The message names the first one, and the function or
            stage whose bits change from call to call.

    Example:
        >>> numbers = samebits.data.Pipeline.range(6).shuffle().with_options(seed=1)
        >>> samebits.data.check(numbers, workers=[2])
        '9a240fcb9db24d01'
    """
    if not isinstance(pipeline, Pipeline):
        raise InvalidArgumentError(
            f"samebits.data.check takes a samebits.data.Pipeline, got {type(pipeline).__name__}; wrap an indexable dataset: "
            "check(Pipeline.from_source(dataset))"
        )
    ways: dict[str, Callable[[], list[int]]] = {
        "read again": lambda: _digests(pipeline, 0, count),
        **{f"with {n} workers": functools.partial(_digests, pipeline, n, count) for n in workers if n},
    }
    warned: dict[str, type[Warning]] = {}
    try:
        alone = call_in_fork(lambda: _digests(pipeline, 0, count), warned)
        again = {reading: call_in_fork(way, warned) for reading, way in ways.items()}
        middle = len(alone) // 2 if resume_at is None else resume_at
        state = call_in_fork(lambda: _state_after(pipeline, middle), warned)
        rest = call_in_fork(lambda: _read_resumed(pipeline, state, count - middle), warned)
        again[f"resumed after element {middle}"] = alone[:middle] + rest
    finally:
        for text, category in warned.items():
            warn_once(text, text, category)
    for reading, digests in again.items():
        if digests != alone:
            _report(pipeline, reading, alone, digests)
    return f"{alone[-1]:016x}" if alone else f"{0:016x}"


def _digests(pipeline: Pipeline, workers: int, count: int) -> list[int]:
    """Returns the rolling digest after each element."""
    iterator = pipeline.with_options(num_parallel_calls=workers)._iterate(pipeline._key(), 0)
    try:
        return _extend_digests(iterator, 0, count)
    finally:
        iterator.close()


def _state_after(pipeline: Pipeline, count: int) -> dict[str, Any]:
    """Returns the state after `count` elements."""
    iterator = pipeline._iterate(pipeline._key(), 0)
    for _ in islice(iterator, count):
        pass
    iterator.close()
    return iterator.state_dict()


def _read_resumed(pipeline: Pipeline, state: dict[str, Any], count: int) -> list[int]:
    iterator = pipeline._iterate(pipeline._key(), 0)
    iterator.load_state_dict(state)
    try:
        return _extend_digests(iterator, int(state["digest"], 16), count)
    finally:
        iterator.close()


def _extend_digests(iterator: Any, value: int, count: int) -> list[int]:
    digests = []
    for element in islice(iterator, count):
        value = update_digest(value, element)
        digests.append(value)
    return digests


def _report(pipeline: Pipeline, reading: str, alone: list[int], digests: list[int]) -> None:
    first = next((k for k, (a, b) in enumerate(zip(alone, digests, strict=False)) if a != b), None)
    if first is None:
        difference = f"there are {len(digests)} elements instead of {len(alone)}"
    else:
        difference = f"element {first} differs from that of the first reading"
    culprit = _culprit(pipeline._stage.bind(pipeline._key()), min(first or 0, 64))
    cure = (
        "It depends on something besides its element: a counter, the time, a set's order, another thread. Make it a function "
        "of its element, or give it a parameter `rng` or `key` to draw from."
    )
    named = (
        f"; {culprit.describe()} gives different bits when it is called again" if culprit is not None else ""
    )
    raise PipelineDifferenceError(f"samebits.data.check: {reading}, {difference}{named}. {cure}")


def _culprit(stage: Stage, first_difference: int) -> Stage | None:
    """Returns the stage nearest to the source that gives different bits for the same ordinals; None if there is none."""
    for below in stage.inputs:
        found = _culprit(below, first_difference)
        if found is not None:
            return found
    if not isinstance(stage, Addressed):
        return None
    last = min(first_difference + 1, stage.length)
    draws = Draws()
    made = [draws.run(lambda: stage.compute(0, (0, last))) for _ in range(3)]
    return stage if len({tuple(_element_hashes(one)) for one in made}) > 1 else None


def _element_hashes(elements: list[Any]) -> list[int]:
    return [update_digest(0, element) for element in elements]
