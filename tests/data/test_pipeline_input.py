"""Bad input: an error that names the stage, the element and the cure, before anything is changed."""

import json
import traceback

import numpy as np
import pytest
import torch

from samebits.data import DataLoader, Pipeline
from samebits.errors import EmptyDatasetError, InvalidArgumentError, PipelineError, PipelineMismatchError
from samebits.random import Generator

numbers = Pipeline.range(10).with_options(seed=1)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Pipeline([1, 2]), InvalidArgumentError, r"samebits.data.Pipeline.from_source\(\[...\]\)"),
        (lambda: Pipeline(np.ones(3)), InvalidArgumentError, r"<ndarray>.*Pipeline.from_source\(...\)"),
        (lambda: Pipeline(i for i in range(3)), InvalidArgumentError, r"Pipeline.from_iterable\(...\)"),
        (lambda: Pipeline(print), InvalidArgumentError, r"Pipeline.from_iterable\(...\)"),
        (lambda: Pipeline(numbers), InvalidArgumentError, "it is a pipeline. Use it as it is"),
        (lambda: Pipeline.from_source([]), EmptyDatasetError, "no elements"),
        (lambda: Pipeline.range(0), EmptyDatasetError, "no elements"),
        (lambda: Pipeline.from_source(iter([1])), InvalidArgumentError, "from_iterable"),
        (lambda: Pipeline.from_iterable(iter([1])), InvalidArgumentError, "pass its function"),
        (lambda: numbers.map(3), InvalidArgumentError, "takes a function"),
        (lambda: numbers.batch(0), InvalidArgumentError, "at least 1"),
        (lambda: numbers.batch(2.5), InvalidArgumentError, "an int of at least 1"),
        (lambda: numbers.shuffle(0), InvalidArgumentError, "buffer_size"),
        (lambda: numbers.repeat(0), InvalidArgumentError, "at least 1"),
        (lambda: numbers.repeat().shuffle(), InvalidArgumentError, "shuffle before repeat"),
        (lambda: numbers.filter(bool).shuffle(), InvalidArgumentError, "buffer_size"),
        (lambda: numbers.take(0), InvalidArgumentError, "at least 1"),
        (lambda: numbers.skip(10), InvalidArgumentError, "nothing is left"),
        (lambda: numbers.shard(3, 3), InvalidArgumentError, "index < num_shards"),
        (lambda: Pipeline.mix([numbers, numbers], [1]), InvalidArgumentError, "one weight for each"),
        (lambda: Pipeline.mix([numbers, numbers], [1, -1]), InvalidArgumentError, "positive"),
        (lambda: Pipeline.mix([numbers, numbers], [1, float("nan")]), InvalidArgumentError, "positive"),
        (lambda: list(Pipeline.zip(numbers, numbers).map(lambda a, b: a)), PipelineError, "one tuple of 2"),
        (lambda: DataLoader(numbers), InvalidArgumentError, "a loader itself"),
        (lambda: DataLoader([1], generator=Generator.from_seed(1)), InvalidArgumentError, "Pass seed="),
        (lambda: Pipeline.zip(), InvalidArgumentError, "one pipeline or more"),
        (lambda: numbers.concatenate([1]), InvalidArgumentError, "one pipeline or more"),
        (lambda: numbers.map_batches(lambda b: b), InvalidArgumentError, "follows batch"),
        (lambda: numbers.batch(2).map_batches(lambda b, rng: b), InvalidArgumentError, "take `key`"),
        (lambda: numbers.bucket_by_length(len, [3, 2], [1, 1, 1]), InvalidArgumentError, "increase"),
        (lambda: numbers.bucket_by_length(len, [2, 3], [1, 1]), InvalidArgumentError, "one more"),
        (lambda: numbers.interleave(range, cycle_length=0), InvalidArgumentError, "cycle_length"),
        (lambda: numbers.map(abs, num_parallel_calls=-1), InvalidArgumentError, "num_parallel_calls"),
        (lambda: numbers.with_options(executor="gpu"), InvalidArgumentError, "executor"),
        (lambda: list(numbers.batch(3).with_options(rank=0, world_size=2)), InvalidArgumentError, "multiple of 2"),
        (lambda: list(numbers.with_options(rank=0, world_size=2)), InvalidArgumentError, "Batch last"),
        (lambda: list(numbers.batch(2).with_options(rank=2, world_size=2)), InvalidArgumentError, "rank < world_size"),
        (lambda: len(numbers.repeat()), TypeError, "does not end"),
        (lambda: len(numbers.repeat().shuffle(8).batch(4)), TypeError, "does not end"),
        (lambda: len(numbers.repeat().shard(7, 2).map(abs)), TypeError, "does not end"),
        (lambda: len(numbers.repeat().skip(2).batch(1 << 20)), TypeError, "does not end"),
        (lambda: len(numbers.filter(bool).repeat()), TypeError, "does not end"),
        (lambda: len(numbers.filter(bool)), TypeError, "only after reading"),
        (lambda: list(numbers.map(lambda x: None if x == 3 else x)), PipelineError, "element 3 became None"),
        (lambda: list(numbers.map(lambda x: 1 / (x - 4))), PipelineError, "element 4 raised ZeroDivisionError"),
        (lambda: list(numbers.filter(lambda x: x.y)), PipelineError, "filter.*element.*AttributeError"),
        (lambda: list(numbers.unbatch()), PipelineError, "takes batches"),
        (lambda: list(numbers.map(lambda n: torch.zeros(20)).pack(8)), PipelineError, "length 20. Cut it"),
        (
            lambda: list(numbers.map(lambda n: torch.zeros(3 if n == 5 else 2)).batch(4)),
            PipelineError,
            "element 5 is Tensor of torch.float32 and shape \\(3,\\), those before it .* padded_batch",
        ),
        (
            lambda: list(numbers.map(lambda n: {"x": np.zeros(2 + n // 9)}).batch(10)),
            PipelineError,
            "element 9 is",
        ),
    ],
)  # fmt: skip
def test_the_message_names_stage_element_and_cure(call, error, words):
    """Each mistake raises its error, with these words."""
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize(
    "options", [{}, {"num_parallel_calls": 2, "executor": "process"}], ids=["inline", "workers"]
)
def test_the_traceback_is_the_users_line_and_function(options):
    """Between the line that reads and the error are no more than two frames of ours; the cause ends in the user's function."""

    def divide(number):
        return 1 / (number - 3)

    pipeline = Pipeline.range(8).map(divide).batch(2).with_options(seed=1, **options)
    with pytest.raises(PipelineError) as caught:
        for _ in pipeline:
            pass
    assert len(traceback.extract_tb(caught.value.__traceback__)) <= 3
    assert "divide" in str(caught.value)
    if not options:  # a worker's traceback is text
        assert traceback.extract_tb(caught.value.__cause__.__traceback__)[-1].name == "divide"


def test_a_generator_that_raises_midway_is_named():
    """The elements before it arrive; the error names its number; the next epoch raises again."""

    def lines():
        yield "a"
        yield "b"
        raise OSError("disk")

    pipeline = Pipeline.from_iterable(lines).with_options(seed=1)
    for _ in range(2):
        iterator = iter(pipeline)
        assert [next(iterator), next(iterator)] == ["a", "b"]
        with pytest.raises(PipelineError, match=r"lines.*element 2 raised OSError: disk"):
            next(iterator)


def test_a_source_that_changes_its_length_is_refused():
    """Indices would mean other elements from there on."""
    data = list(range(8))
    iterator = iter(Pipeline.from_source(data).batch(2).with_options(seed=1))
    next(iterator)
    data.append(8)
    with pytest.raises(PipelineError, match="had 8 elements .* has 9 now"):
        next(iterator)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s | {"schema": 99}, "schema 99"),
        (lambda s: {}, "not a state"),
        (lambda s: s | {"delivered": "x"}, "not a state"),
        (lambda s: s | {"digest": "zz"}, "not a state"),
        (lambda s: s | {"state": {"a": 1}}, "not a state"),
        (lambda s: s | {"state": 10**9}, "has no element 1000000000"),
        (lambda s: s | {"state": -1}, "not a state"),
        (lambda s: s | {"pipeline": "0" * 40}, "another pipeline"),
    ],
)
def test_a_corrupt_state_is_refused_and_changes_nothing(change, words):
    """The iterator goes on where it was."""
    iterator = iter(Pipeline.range(10).shuffle().with_options(seed=1))
    first = [next(iterator) for _ in range(3)]
    state = json.loads(json.dumps(iterator.state_dict()))
    with pytest.raises(PipelineMismatchError, match=words):
        iterator.load_state_dict(change(state))
    assert sorted(first + list(iterator)) == list(range(10))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: Pipeline.range(11).shuffle().batch(2), r"range\(range=range\(0, 11\)\) was different"),
        (lambda: Pipeline.range(10).batch(2), "batch.*was different"),
        (lambda: Pipeline.range(10).shuffle().batch(3), r"batch\(batch_size=3.*was different"),
        (lambda: Pipeline.range(10).shuffle(), "it had more stages after shuffle"),
        (lambda: Pipeline.range(10).shuffle().batch(2).map(len), "map.*has been added"),
        (lambda: Pipeline.range(10).shuffle().batch(2).with_options(seed=2), "seed 2 was different"),
    ],
)
def test_the_state_of_another_pipeline_names_the_stage_that_differs(other, words):
    """A position means nothing in another pipeline."""
    state = iter(Pipeline.range(10).shuffle().batch(2).with_options(seed=1)).state_dict()
    pipeline = other()
    if pipeline._options.seed is None:
        pipeline = pipeline.with_options(seed=1)
    with pytest.raises(PipelineMismatchError, match=words):
        pipeline.load_state_dict(state)


def test_an_endless_pipeline_is_endless_until_something_ends_it():
    """`take` ends it, `zip` and `mix` with a finite input, too; `concatenate`, `filter`, `skip`, `shard`, `batch` do not."""
    numbers, ever = Pipeline.range(9), Pipeline.range(9).repeat()
    for by in (lambda p: p, lambda p: p.filter(bool)):  # numbered and streamed stages
        ends = [
            by(ever).take(5),
            Pipeline.zip(by(ever), numbers),
            Pipeline.mix([by(ever), numbers], [1, 1]),
            by(numbers).repeat(3).batch(2),
            by(numbers).concatenate(numbers),
        ]
        never = [
            by(ever).skip(2).batch(3),
            by(numbers.repeat()).shard(2, 1),
            by(numbers).repeat().enumerate(),
            numbers.concatenate(by(ever)),
            Pipeline.zip(by(ever), ever),
            Pipeline.mix([by(ever), ever], [1, 1]),
            by(Pipeline.random(seed=1)).map(abs),
        ]
        assert not any(one.endless for one in ends) and all(one.endless for one in never)
