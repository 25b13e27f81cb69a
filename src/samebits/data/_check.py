"""`check`: reads a pipeline or loader in several ways; names the first difference, and its cause."""

from __future__ import annotations

import functools
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.utils.data as torch_data

from samebits.data._calls.process_generators import Draws
from samebits.data._loader import DataLoader
from samebits.data._loader_batches import LoaderBatches
from samebits.data._pipeline import Pipeline
from samebits.data._resumable import PipelineIterator
from samebits.data._rolling_digest import update_digest
from samebits.data._stages.stage import Addressed, Stage
from samebits.data._workers.launch_workers import fork, may_start
from samebits.data._workers.worker_process import pack_error, tie_to_parent, unpack_error
from samebits.determinism._warn_once import warn_once
from samebits.errors import InvalidArgumentError, PipelineDifferenceError, PipelineError


def check(
    pipeline: Pipeline | DataLoader[Any],
    workers: Sequence[int] = (0, 2, 3),
    *,
    resume_at: int | None = None,
    count: int = 200,
) -> str:
    """Reads the first `count` elements again, with each number of workers, and resumed after `resume_at`.

    Each reading is in a process forked off this one, so that a function remembers nothing from another
    reading. The elements of a `samebits.data.DataLoader` are its batches; they are those of its first epoch.

    Returns:
        The digest of these elements, the same for all ways of reading.

    Raises:
        PipelineDifferenceError: two ways give different elements. The message names the first one, and the
            function or stage whose bits change from call to call.
        InvalidArgumentError: this is neither a pipeline nor a loader of samebits'.

    Example:
        >>> numbers = samebits.data.Pipeline.range(6).shuffle().with_options(seed=1)
        >>> samebits.data.check(numbers, workers=[2])
        '9a240fcb9db24d01'
        >>> loader = samebits.data.DataLoader(range(6), batch_size=2, seed=1)
        >>> samebits.data.check(loader, workers=[2])
        '0aeaf8c44a0a0bb2'
    """
    if not isinstance(pipeline, Pipeline | DataLoader):
        cure = (
            "samebits.data.DataLoader(...) takes the same arguments"
            if isinstance(pipeline, torch_data.DataLoader)
            else "wrap an indexable dataset: check(Pipeline.from_source(dataset))"
        )
        raise InvalidArgumentError(
            "samebits.data.check takes a samebits.data.Pipeline or DataLoader, got "
            f"{type(pipeline).__module__.partition('.')[0]}'s {type(pipeline).__name__}; {cure}"
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
        before = alone[middle - 1] if middle else 0
        rest = call_in_fork(lambda: _digests(pipeline, None, count - middle, state, before), warned)
        again[f"resumed after element {middle}"] = alone[:middle] + rest
    finally:
        for text, category in warned.items():
            warn_once(text, text, category)
    for reading, digests in again.items():
        if digests != alone:
            _report(pipeline, reading, alone, digests)
    return f"{alone[-1]:016x}" if alone else f"{0:016x}"


def _digests(
    pipeline: Pipeline | DataLoader[Any], workers: int | None, count: int,
    state: dict[str, Any] | None = None, before: int = 0,
) -> list[int]:  # fmt: skip
    """Returns the rolling digest after each of `count` elements, from a state on with the digest `before`."""
    iterator = _iterate(pipeline, workers)
    if state is not None:
        iterator.load_state_dict(state)
    try:
        rolled = accumulate(islice(iterator, count), update_digest, initial=before)
        return list(rolled)[1:]
    finally:
        iterator.close()


def _iterate(pipeline: Pipeline | DataLoader[Any], workers: int | None) -> PipelineIterator:
    """Returns an iteration of the first epoch; `workers`: None for the pipeline's or loader's own number."""
    stage, options = pipeline._stage, replace(pipeline._options, kept_workers=None)
    if workers is not None:
        options = replace(options, num_parallel_calls=workers)
        if isinstance(stage, LoaderBatches):  # as many ahead as a loader with these workers has
            stage, options = stage.with_workers(workers), replace(options, prefetch=2 * workers + 1)
    return PipelineIterator(stage, pipeline._key(), 0, pipeline._seed(), options)


def _state_after(pipeline: Pipeline | DataLoader[Any], count: int) -> dict[str, Any]:
    iterator = _iterate(pipeline, None)
    for _ in islice(iterator, count):
        pass
    iterator.close()
    return iterator.state_dict()


def _report(pipeline: Pipeline | DataLoader[Any], reading: str, alone: list[int], digests: list[int]) -> None:
    first = next((k for k, (a, b) in enumerate(zip(alone, digests, strict=False)) if a != b), None)
    if first is None:
        difference = f"there are {len(digests)} elements instead of {len(alone)}"
    else:
        difference = f"element {first} differs from that of the first reading"
    stage, number = pipeline._stage.bind(pipeline._key()), first or 0
    culprit = (
        _culprit_of_loader(stage, number)
        if isinstance(stage, LoaderBatches)
        else _culprit(stage, min(number, 64))
    )
    cure = (
        "It depends on something besides its element: a counter, the time, a set's order, another thread. "
        "Make it a function of its element, or give it a parameter `rng` or `key` to draw from."
    )
    named = f"; {culprit} gives different bits when it is called again" if culprit else ""
    raise PipelineDifferenceError(f"samebits.data.check: {reading}, {difference}{named}. {cure}")


def _culprit_of_loader(stage: LoaderBatches, first_difference: int) -> str | None:
    """Returns the dataset or collate function with different bits for this batch; None if it is neither."""
    task = next(islice(stage.tasks(0, first_difference), 1))
    draws = Draws()
    for name, compute in stage.steps(task):
        if len({update_digest(0, draws.run(compute)) for _ in range(3)}) > 1:
            return name
    return None


def _culprit(stage: Stage, first_difference: int) -> str | None:
    """Returns the stage nearest to the source that gives different bits for the same ordinals, or None."""
    for below in stage.inputs:
        found = _culprit(below, first_difference)
        if found is not None:
            return found
    if not isinstance(stage, Addressed):
        return None
    last = min(first_difference + 1, stage.length)
    draws = Draws()
    made = {update_digest(0, draws.run(lambda: stage.compute(0, (0, last)))) for _ in range(3)}
    return stage.describe() if len(made) > 1 else None


def call_in_fork(function: Callable[[], Any], warned: dict[str, type[Warning]]) -> Any:
    """Calls `function` in a forked process, and returns or raises as it does.

    It finds this process's caches as they are now and fills none of them. `warned` gets its warnings.

    It runs in this process if this is a worker, or if CUDA is initialised, which no fork survives.
    """
    if torch.cuda.is_initialized() or not may_start():
        return function()
    ours, theirs = multiprocessing.Pipe(duplex=False)
    by_thread = threading.current_thread() is not threading.main_thread()
    process = fork(_run_child, function, ours, theirs, os.getpid(), by_thread, daemon=False)
    theirs.close()
    try:
        result, error, texts = ours.recv()
    except EOFError:
        process.join()
        raise PipelineError(
            f"a process that read the pipeline ended (exit code {process.exitcode})"
        ) from None
    finally:
        ours.close()
        process.join()
    warned.update(texts)
    if error is not None:
        raise unpack_error(error)
    return result


def _run_child(
    function: Callable[[], Any], ours: Connection, theirs: Connection, parent: int, by_thread: bool
) -> None:
    ours.close()
    tie_to_parent(parent, by_thread=by_thread)
    torch.set_num_threads(1)  # before any op: OpenMP's threads did not survive the fork
    result, error = None, None
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = function()
        except BaseException as raised:
            error = pack_error(raised)
    theirs.send((result, error, {str(one.message): one.category for one in warned}))
