"""`Pipeline`: an immutable description of a stream of elements, with equal bits for any number of workers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FunctionType
from typing import Any, Literal, NoReturn

import torch
from torch.utils.data import IterableDataset, get_worker_info

from samebits._arguments import require, require_int
from samebits._inspect.user_code import is_user_type
from samebits._unseeded import no_seed
from samebits.data._calls.user_function import Function
from samebits.data._collate import PadCollate, default_collate
from samebits.data._options import Executor, OnConflict, Options, Remainder, StartMethod
from samebits.data._resumable import Resumable
from samebits.data._stages import combine, map_filter, order
from samebits.data._stages.batch import Batch, Bucket, Pack, StreamBatch
from samebits.data._stages.enumerate import Enumerate, StreamEnumerate
from samebits.data._stages.sources import Cache, IterableSource, Random, Range, Source, StreamCache
from samebits.data._stages.stage import INFINITE, Addressed, Stage
from samebits.errors import InvalidArgumentError, UnimplementedError
from samebits.random._process import seeds

Collate = Callable[[list[Any]], Any]


class Pipeline(Resumable):
    """A stream (TensorFlow's `Dataset`): element k is a function of (pipeline, seed, epoch, k) alone.

    Every method returns a new pipeline and leaves this one as it is. `iter(pipeline)` starts the next epoch;
    each epoch is shuffled and augmented anew. The seed is `with_options(seed=)`, else that of
    `samebits.set_random_seed`.

    A user's function may draw random numbers in three ways, which all depend only on the element's place:
    from a parameter named `key` (a `samebits.random` key), from one named `rng` (a `numpy.random.Generator`),
    or from the generators of torch, NumPy and Python, which are set for each element (slower by 5 to 10 us)
    and restored. So are generators that belong to objects which the function reaches.

    Example:
        >>> numbers = samebits.data.Pipeline.range(6).shuffle().batch(2).with_options(seed=1)
        >>> [batch.tolist() for batch in numbers]
        [[4, 0], [5, 3], [1, 2]]
        >>> [batch.tolist() for batch in numbers]  # the next epoch
        [[2, 0], [1, 5], [4, 3]]
    """

    _domain = "pipeline"

    def __init__(self, stage: Stage, options: Options | None = None) -> None:
        if not isinstance(stage, Stage):
            _refuse_elements(stage)
        self._stage = stage
        self._options = options or Options()

    # Sources

    @classmethod
    def from_source(cls, data: Any, *, stateful: bool | None = None) -> Pipeline:
        """Returns the elements of an object with `__len__` and `__getitem__`: list, array, tensor, dataset.

        `__getitems__(indices)` is used where the object has it. `stateful` is as for `map`: False where
        reading an element leaves a change that does not matter, such as a memo.

        Raises:
            InvalidArgumentError: the object cannot be indexed.
            EmptyDatasetError: the object has no elements.
        """
        return cls(Source(data, stateful=stateful))

    @classmethod
    def from_iterable(cls, iterable: Iterable[Any] | Callable[[], Iterable[Any]]) -> Pipeline:
        """Returns the elements of an iterable that can be read again, or of a function that returns one.

        A resume reads and drops the elements before it; prefer `from_source` where there is an index.
        """
        return cls(IterableSource(iterable))

    @classmethod
    def range(cls, *arguments: int) -> Pipeline:
        """Returns the integers of `range(*arguments)`."""
        return cls(Range(*arguments))

    @classmethod
    def random(cls, seed: int | None = None) -> Pipeline:
        """Returns uniform integers of [0, 2**63), without end.

        Raises:
            UnseededError: (when it is read) it has no `seed`, the pipeline none, and the process none.
        """
        return cls(Random(seed))

    # Transformations of elements

    def map(
        self,
        function: Callable[..., Any],
        *,
        num_parallel_calls: int | Literal["auto"] | None = None,
        executor: Executor | None = None,
        deterministic: bool | None = None,
        stateful: bool | None = None,
    ) -> Pipeline:
        """Applies `function(element)` to every element.

        Args:
            function: returns the new element; None is an error. The class says what it may draw.
            num_parallel_calls: worker processes; "auto": as many as cores where that is faster, else none.
                The pipeline has one team of workers, of the largest number that a stage requests.
            executor: "process", "thread" (where no function draws from the process's generators), or "auto".
            deterministic: False gives elements in order of completion (not under the switch).
            stateful: True if a call leaves a change (a global, a closure's variable, an attribute). Then the
                function is called in this process, one element at a time and in order. By default its code is
                read for such changes, and its captured values are compared around the first elements.
        """
        options = self._options.with_changes(
            num_parallel_calls=num_parallel_calls, executor=executor, deterministic=deterministic
        )
        return Pipeline(self._apply(map_filter.Map, function, stateful)._stage, options)

    def map_batches(
        self, function: Callable[..., Any], *, stateful: bool | None = None, **options: Any
    ) -> Pipeline:
        """Applies `function(batch)` to every batch; options as for `map`.

        A parameter named `key` gets one key for each row, of shape (rows, 2): the keys that `map` before
        `batch` would have given to the elements.
        """
        if map_filter.batching_below(self._stage) is None:
            raise InvalidArgumentError(
                f"Pipeline.map_batches: it follows batch or padded_batch, not {self._stage.describe()}; use "
                "map for single elements"
            )
        mapped = self._apply(map_filter.MapBatches, function, stateful)
        return Pipeline(mapped._stage, self._options.with_changes(**options))

    def filter(self, predicate: Callable[..., Any], *, stateful: bool | None = None) -> Pipeline:
        """Keeps the elements for which `predicate(element)` is true; `stateful` as for `map`."""
        return self._apply(map_filter.Filter, predicate, stateful)

    def flat_map(self, function: Callable[..., Any], *, stateful: bool | None = None) -> Pipeline:
        """Returns all elements of the finite iterables `function(element)`; `stateful` is as for `map`."""
        return self._apply(map_filter.FlatMap, function, stateful)

    def interleave(
        self, function: Callable[..., Any], cycle_length: int = 4, block_length: int = 1
    ) -> Pipeline:
        """Yields `block_length` elements of each of `cycle_length` inner streams in turn, as in tf.data.

        Args:
            function: element -> `Pipeline`, indexable object or iterable; the next replaces one that ended.
            cycle_length: inner streams that are open at once.
            block_length: consecutive elements of one of them.
        """
        require_int("Pipeline.interleave", cycle_length=cycle_length)
        require_int("Pipeline.interleave", block_length=block_length)
        given = Function(function, "interleave"), cycle_length, block_length
        return self._append_stage(combine.Interleave(self._stage, *given, _as_stage))

    # Order

    def shuffle(self, buffer_size: int | None = None, *, reshuffle_each_epoch: bool = True) -> Pipeline:
        """Yields all elements in a keyed order: O(1) memory, no buffer to fill, resumed at once.

        With a `buffer_size`, tf.data's shuffle: each element is drawn from a buffer of that size. It holds
        indices of indexable inputs, else elements, to which the state refers by their positions in the input.

        Raises:
            InvalidArgumentError: without a buffer, this pipeline can only be read in order.
        """
        if buffer_size is not None:
            require_int("Pipeline.shuffle", buffer_size=buffer_size)
            return self._append(
                order.BufferShuffle,
                order.StreamShuffle,
                buffer_size,
                reshuffle_each_epoch=reshuffle_each_epoch,
            )
        if not isinstance(self._stage, Addressed):
            raise InvalidArgumentError(
                f"Pipeline.shuffle(): after {self._stage.describe()} elements can only be read in order; "
                "shuffle before it, or give a buffer_size"
            )
        return self._append_stage(order.Shuffle(self._stage, reshuffle_each_epoch=reshuffle_each_epoch))

    def repeat(self, count: int | None = None) -> Pipeline:
        """Repeats the elements `count` times (None: without end), each time shuffled and augmented anew."""
        if count is not None:
            require_int("Pipeline.repeat", count=count)
        return self._append(order.Repeat, order.StreamRepeat, count)

    def take(self, count: int) -> Pipeline:
        """Keeps the first `count` elements."""
        require_int("Pipeline.take", count=count)
        return self._slice("take", range(count))

    def skip(self, count: int) -> Pipeline:
        """Drops the first `count` elements."""
        require(count >= 0, "Pipeline.skip", "must be at least 0", count=count)
        return self._slice("skip", range(count, INFINITE))

    def shard(self, num_shards: int, index: int) -> Pipeline:
        """Keeps every `num_shards`-th element, from number `index` on."""
        require_int("Pipeline.shard", num_shards=num_shards)
        require(
            0 <= index < num_shards, "Pipeline.shard", f"0 <= index < num_shards={num_shards}", index=index
        )
        return self._slice("shard", range(index, INFINITE, num_shards))

    def enumerate(self, start: int = 0) -> Pipeline:
        """Returns (number, element), with numbers counted from `start` in every epoch."""
        return self._append(Enumerate, StreamEnumerate, start)

    # Combinations of pipelines

    @staticmethod
    def zip(*pipelines: Pipeline) -> Pipeline:
        """Returns tuples of one element of each; as long as the shortest."""
        return _combine("zip", pipelines, combine.Zip, combine.StreamZip)

    def concatenate(self, *others: Pipeline) -> Pipeline:
        """Returns all elements of this one, then all of the next, and so on."""
        return _combine("concatenate", (self, *others), combine.Concatenate, combine.StreamConcatenate)

    @staticmethod
    def mix(pipelines: Sequence[Pipeline], weights: Sequence[float]) -> Pipeline:
        """Mixes elements in proportion to the weights, evenly spread, until one pipeline has run out."""
        if len(pipelines) != len(weights):
            raise InvalidArgumentError(
                f"Pipeline.mix: {len(pipelines)} pipelines and {len(weights)} weights; give one weight for "
                "each"
            )
        fits = all(0 < weight < float("inf") for weight in weights)
        require(fits, "Pipeline.mix", "the weights must be positive and finite", weights=weights)
        return _combine(
            "mix",
            pipelines,
            lambda *stages: combine.Mix(stages, weights),
            lambda *stages: combine.StreamMix(stages, weights),
        )

    # Batches

    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, collate: Collate = default_collate
    ) -> Pipeline:
        """Returns batches of `batch_size` elements, put together by `collate`."""
        require_int("Pipeline.batch", batch_size=batch_size)
        return self._append(
            Batch, StreamBatch, batch_size, Function(collate, "batch"), drop_remainder=drop_remainder
        )

    def padded_batch(
        self, batch_size: int, *, padding_value: float = 0, padded_shape: Sequence[int] | None = None,
        drop_remainder: bool = False
    ) -> Pipeline:  # fmt: skip
        """Returns batches of elements of different sizes, padded at the end to the largest, or to
        `padded_shape` (-1: the largest of the batch).
        """
        require_int("Pipeline.padded_batch", batch_size=batch_size)
        collate = Function(PadCollate(padding_value, padded_shape), "padded_batch")
        return self._append(
            Batch, StreamBatch, batch_size, collate, drop_remainder=drop_remainder, kind="padded_batch"
        )

    def unbatch(self) -> Pipeline:
        """Returns the rows of every batch."""
        return self._apply(map_filter.Unbatch, list, None)

    def bucket_by_length(
        self, element_length: Callable[..., int], boundaries: Sequence[int], batch_sizes: Sequence[int], *,
        padding_value: float = 0, drop_remainder: bool = False
    ) -> Pipeline:  # fmt: skip
        """Returns padded batches of elements of similar length.

        Args:
            element_length: element -> length.
            boundaries: increasing; bucket i has the lengths below boundaries[i] that no earlier bucket has.
            batch_sizes: of each bucket, one more than boundaries.
            padding_value: as for `padded_batch`.
            drop_remainder: drop the batches that are not full at the end.
        """
        if list(boundaries) != sorted(set(boundaries)) or len(batch_sizes) != len(boundaries) + 1:
            raise InvalidArgumentError(
                f"Pipeline.bucket_by_length: boundaries={list(boundaries)} must increase, and "
                f"batch_sizes={list(batch_sizes)} have one more ({len(boundaries) + 1})"
            )
        for size in batch_sizes:
            require_int("Pipeline.bucket_by_length", batch_size=size)
        measure, collate = Function(element_length, "bucket_by_length"), PadCollate(padding_value, None)
        return self._append_stage(
            Bucket(
                self._stage, measure, boundaries, batch_sizes, Function(collate, "bucket_by_length"),
                drop_remainder=drop_remainder
            )
        )  # fmt: skip

    def pack(self, length: int, *, open_rows: int = 8) -> Pipeline:
        """Packs sequences side by side in rows of `length`, first fit among `open_rows` rows.

        An element is a 1-D sequence, or a dict of sequences of one length. A row is a dict of tensors of size
        `length`: the fields (`tokens` for plain sequences), `segment_ids` (1, 2, ...; 0: padding) and
        `positions` in the sequence.
        """
        require_int("Pipeline.pack", length=length)
        require_int("Pipeline.pack", open_rows=open_rows)
        return self._append_stage(Pack(self._stage, length, open_rows))

    # Reading

    def cache(self) -> Pipeline:
        """Keeps elements in memory (of each process): every epoch then has the elements of the first."""
        return self._append(Cache, StreamCache)

    def prefetch(
        self, buffer_size: int | Literal["auto"], *, device: str | torch.device | None = None
    ) -> Pipeline:
        """Lets workers be `buffer_size` batches ahead (without workers nothing is computed ahead).

        "auto": two batches for each worker, as without this call.
        `device`: where tensors go, also those in dicts, lists and tuples; to CUDA through pinned memory, on a
        separate stream.
        """
        return Pipeline(self._stage, self._options.with_changes(prefetch=buffer_size, device=device))

    def with_options(
        self, *, seed: int | None = None, deterministic: bool | None = None,
        num_parallel_calls: int | Literal["auto"] | None = None, executor: Executor | None = None,
        timeout: float | None = None, rank: int | None = None, world_size: int | None = None,
        remainder: Remainder | None = None, start_method: StartMethod | None = None,
        on_conflict: OnConflict | None = None, pin_memory: bool | None = None
    ) -> Pipeline:  # fmt: skip
        """Returns the same elements (of another `seed`), read in another way.

        Args:
            seed: replaces the process's.
            deterministic: False gives elements in order of completion (not under the switch).
            num_parallel_calls: as for `map`.
            executor: as for `map`.
            timeout: seconds to wait for a batch of a worker before an error is raised.
            rank: of this process, which computes its rows of each batch; default: that of torch.distributed.
            world_size: the number of processes. The batches together are the same for any number.
            on_conflict: for `deterministic=False` under the switch: "warn" (default: it is ignored), "raise".
            remainder: for a batch that cannot be shared evenly: "pad" (the default), "drop", "uneven".
            start_method: of worker processes. "fork" shares what this process has loaded. "server" forks them
                off another process, which shares nothing with this one and is sent the pipeline by value.
                "auto" is "server" where CUDA is initialised, which does not survive a fork, else "fork".
            pin_memory: puts tensors into pinned memory, from which copies to CUDA run beside the computation.
        """
        return Pipeline(
            self._stage,
            self._options.with_changes(
                seed=seed, deterministic=deterministic, num_parallel_calls=num_parallel_calls,
                executor=executor, timeout=timeout, rank=rank, world_size=world_size, remainder=remainder,
                start_method=start_method, on_conflict=on_conflict, pin_memory=pin_memory
            )
        )  # fmt: skip

    def as_iterable_dataset(self) -> PipelineDataset:
        """Returns a dataset for `torch.utils.data.DataLoader(dataset, batch_size=None)` and its users
        (Lightning, Accelerate).

        Its `state_dict` and `load_state_dict` are the pipeline's, which has the workers; the loader has none.
        """
        is_finite = not self.endless and self._stage.length is not None
        return (FinitePipelineDataset if is_finite else PipelineDataset)(self)

    def __len__(self) -> int:
        length = self._stage.length
        if self.endless or length is None:
            what = "does not end" if self.endless else "has a length that is known only after reading it"
            raise TypeError(f"len(Pipeline): {self._stage.describe()} {what}")
        return length

    @property
    def endless(self) -> bool:
        """True if an epoch is known to be endless: `len` raises, and a loop needs `steps_per_epoch`."""
        return self._stage.endless

    def __repr__(self) -> str:
        return f"Pipeline({_describe_chain(self._stage)})"

    def _seed(self) -> int:
        if self._options.seed is not None:
            return self._options.seed
        seed = seeds.root_seed()
        if seed is not None:
            return seed
        what = self._stage.needs_seed()
        if what is not None:
            raise no_seed(
                f"a samebits.data.Pipeline needs a seed for {what}", instead="with_options(seed=...)"
            )
        return 0

    def _append_stage(self, stage: Stage) -> Pipeline:
        return Pipeline(stage, self._options)

    def _apply(
        self, operation: type[map_filter.Operation], function: Callable[..., Any], stateful: bool | None
    ) -> Pipeline:
        called = Function(function, operation.kind, stateful=stateful)
        return self._append_stage(map_filter.apply(operation(called), self._stage))

    def _append(self, addressed: Any, streamed: Any, *arguments: Any, **named: Any) -> Pipeline:
        """Appends the stage by index where this pipeline can be read so, else the one by stream."""
        kind = addressed if isinstance(self._stage, Addressed) else streamed
        return self._append_stage(kind(self._stage, *arguments, **named))

    def _slice(self, kind: str, part: Any) -> Pipeline:
        if not isinstance(self._stage, Addressed):
            return self._append_stage(order.StreamSlice(self._stage, kind, part))
        inside = range(part.start, min(part.stop, self._stage.length), part.step)
        if not inside:
            raise InvalidArgumentError(
                f"Pipeline.{kind}: nothing is left of the {self._stage.length} elements of "
                f"{self._stage.describe()}"
            )
        return self._append_stage(order.Slice(self._stage, kind, inside))


def held_by(pipeline: Pipeline) -> list[tuple[str, Any]]:
    """Returns the user's objects that a pipeline reads and calls, each with a name; of a method its object.

    A commit has none of them: it has the position.
    """
    found: list[tuple[str, Any]] = []
    for stage in pipeline._stage.chain():
        if isinstance(stage, IterableSource):
            found.append(("iterable", stage.iterable))
        for function in stage.functions:
            called = getattr(function.call, "__self__", function.call)
            found.append(("dataset" if isinstance(stage, Source) else "function", called))
    return [(name, one) for name, one in found if isinstance(one, _HELD) or is_user_type(type(one))]


_HELD = (FunctionType, functools.partial, list, dict)
"""Types that a walk goes into besides the user's own; tensors and arrays do not change by themselves."""


class PipelineDataset(IterableDataset[Any]):
    """The elements of a pipeline, for `torch.utils.data.DataLoader(dataset, batch_size=None)`.

    Each `iter()` is the next epoch, as with the pipeline itself; the position is the pipeline's.
    """

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise UnimplementedError(
                "a samebits pipeline in a worker of torch's DataLoader: each worker would read all of it, "
                "and none would know its position. Give the DataLoader num_workers=0 and the pipeline its "
                "own workers: pipeline.with_options(num_parallel_calls=4).as_iterable_dataset()"
            )
        return iter(self.pipeline)

    @property
    def endless(self) -> bool:
        """True if the pipeline is known to have no end."""
        return self.pipeline.endless

    def state_dict(self) -> dict[str, Any]:
        """Returns the pipeline's position; see `Pipeline.state_dict`."""
        return self.pipeline.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes the next `iter()` from a position; see `Pipeline.load_state_dict`."""
        self.pipeline.load_state_dict(state)


class FinitePipelineDataset(PipelineDataset):
    """One with a length: Keras asks whatever has the method."""

    def __len__(self) -> int:
        return len(self.pipeline)


def _refuse_elements(given: Any) -> NoReturn:
    """Raises for elements in the place of a stage, `Pipeline([1, 2])`, with the method that takes them."""
    if isinstance(given, Pipeline):
        raise InvalidArgumentError(
            "samebits.data.Pipeline(<Pipeline>): it is a pipeline. Use it as it is, or call its methods: "
            "pipeline.batch(32)."
        )
    method = "from_source" if hasattr(given, "__len__") and hasattr(given, "__getitem__") else "from_iterable"
    shown = {"list": "[...]", "tuple": "(...)"}.get(type(given).__name__, "...")
    raise InvalidArgumentError(
        f"samebits.data.Pipeline(<{type(given).__name__}>): a pipeline begins with a source. Call "
        f"samebits.data.Pipeline.{method}({shown})."
    )


def _combine(kind: str, pipelines: Sequence[Pipeline], addressed: Any, streamed: Any) -> Pipeline:
    if not pipelines or not all(isinstance(one, Pipeline) for one in pipelines):
        raise InvalidArgumentError(f"Pipeline.{kind} takes one pipeline or more, got {pipelines!r:.80}")
    stages = [one._stage for one in pipelines]
    options = pipelines[0]._options
    for one in pipelines[1:]:
        options = options.merge(one._options)
    return Pipeline(
        (addressed if all(isinstance(s, Addressed) for s in stages) else streamed)(*stages), options
    )


def _as_stage(inner: Any) -> Stage:
    if isinstance(inner, Pipeline):
        return inner._stage
    indexable = hasattr(inner, "__len__") and hasattr(inner, "__getitem__")
    # An inner stream may be empty, a source may not.
    if indexable and not isinstance(inner, dict) and len(inner) > 0:
        return Source(inner)
    return IterableSource(inner)


def _describe_chain(stage: Stage) -> str:
    if len(stage.inputs) > 1:
        return f"{stage.kind}({'; '.join(map(_describe_chain, stage.inputs))})"
    return " -> ".join([*map(_describe_chain, stage.inputs), stage.describe()])
