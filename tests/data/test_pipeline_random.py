"""Random pipelines: whatever the stages and wherever the cut, the elements are those of one plain reading."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import samebits
from samebits.data import Pipeline, check
from samebits.data._resumable import NextEpoch
from samebits.errors import PipelineDifferenceError


def total(x):
    return (
        float(np.sum([total(one) for one in x]))
        if isinstance(x, list | tuple)
        else float(np.sum(np.asarray(x)))
    )


def drawn(x):
    return total(x) + np.random.rand()


def with_rng(x, rng):
    return total(x) + rng.random()


def kept(x):
    return int(total(x)) % 4 != 1


def nonzero(x):
    return total(x) != 0


def repeated(x):
    return [total(x)] * (int(total(x)) % 3)


def rows(elements):
    return torch.tensor([total(element) for element in elements])


sources = st.one_of(
    st.integers(1, 40).map(Pipeline.range),
    st.integers(1, 30).map(lambda n: Pipeline.from_source(np.arange(n) * 3)),
    st.integers(0, 30).map(lambda n: Pipeline.from_iterable(range(n))),
)
sizes = st.integers(1, 9)


def stages(pipeline):
    """One more stage on `pipeline`, whichever it is."""
    plain = st.sampled_from(
        [
            lambda p: p.map(drawn),
            lambda p: p.map(with_rng),
            lambda p: p.filter(kept),
            lambda p: p.flat_map(repeated),
            lambda p: p.enumerate(),
            lambda p: p.cache(),
            lambda p: p.batch(3, collate=rows).unbatch(),
            lambda p: p.interleave(repeated, 2, 2),
        ]
    )
    sized = st.tuples(
        sizes,
        st.sampled_from(
            [
                lambda n, p: p.shuffle(n),
                lambda n, p: p.take(n * 5),
                lambda n, p: p.batch(n, collate=rows),
                lambda n, p: p.batch(n, collate=rows, drop_remainder=True),
                lambda n, p: p.repeat(n % 3 + 1),
                lambda n, p: p.filter(nonzero).skip(n),
                lambda n, p: p.filter(nonzero).shard(n, n // 2),
            ]
        ),
    ).map(lambda pair: lambda p: pair[1](pair[0], p))
    return st.one_of(plain, sized).map(lambda add: add(pipeline))


pipelines = st.recursive(
    sources,
    lambda inner: st.one_of(
        inner.flatmap(stages),
        inner.flatmap(stages),
        st.tuples(inner, inner).map(lambda two: Pipeline.zip(*two)),
        st.tuples(inner, inner).map(lambda two: two[0].concatenate(two[1])),
        st.tuples(inner, inner, sizes).map(lambda three: Pipeline.mix(three[:2], [1, three[2]])),
    ),
    max_leaves=6,
)


def plain(element):
    if isinstance(element, list | tuple):
        return [plain(one) for one in element]
    return (str(getattr(element, "dtype", type(element))), np.asarray(element).tobytes())


def read(pipeline, limit=60):
    iterator, elements, states = iter(pipeline), [], []
    states.append(iterator.state_dict())
    for element in iterator:
        elements.append(plain(element))
        states.append(iterator.state_dict())
        if len(elements) == limit:
            break
    return elements, states


@given(pipelines, st.integers(0, 59), st.integers(0, 3))
@settings(max_examples=120, deadline=None, derandomize=True)
def test_any_pipeline_goes_on_from_any_cut(pipeline, cut, epoch):
    """From the state behind element `cut` the same elements follow, and the rolling digests are the same."""
    pipeline = pipeline.with_options(seed=7)
    for _ in range(epoch):
        iter(pipeline)
    elements, states = read(pipeline)
    cut = min(cut, len(elements))
    again = pipeline.with_options(seed=7)
    again.load_state_dict(json.loads(json.dumps(states[cut])))
    tail, later = read(again, 60 - cut)
    assert tail == elements[cut:]
    assert later == states[cut:]


@pytest.mark.slow
@given(pipelines, st.integers(1, 3))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_any_pipeline_is_the_same_with_workers(pipeline, workers):
    """Workers give what the process alone gives; check() says so, too."""
    pipeline = pipeline.with_options(seed=7)
    alone, _ = read(pipeline.with_options(seed=7))
    assert read(pipeline.with_options(num_parallel_calls=workers))[0] == alone
    check(pipeline, workers=(workers,), count=30)


def test_a_function_with_a_memory_is_found():
    """Negative control: check() names a function that counts its calls."""
    calls = []

    def counted(x):
        calls.append(x)
        return x + len(calls)

    with pytest.raises(PipelineDifferenceError, match="counted"):
        check(Pipeline.range(40).map(abs).map(counted).batch(4).with_options(seed=1))


def test_the_callers_generators_are_untouched():
    """Making, reading, saving and restoring a pipeline moves no generator (Megatron-Bridge#5257)."""
    import random

    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)
    pipeline = Pipeline.range(20).shuffle().map(drawn).filter(kept).batch(3).with_options(seed=1)
    iterator = iter(pipeline)
    next(iterator)
    pipeline.load_state_dict(iterator.state_dict())
    list(pipeline)
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


def test_resuming_at_the_end_of_an_epoch_drops_none():
    """The state behind the last batch goes on with the next epoch's first (data#1437, streaming#700)."""
    whole = Pipeline.range(12).shuffle().batch(4).with_options(seed=3)
    epochs = [[batch.tolist() for batch in whole] for _ in range(3)]
    saved = Pipeline.range(12).shuffle().batch(4).with_options(seed=3)
    iterator = iter(saved)
    assert [next(iterator).tolist() for _ in range(3)] == epochs[0]
    for state in (saved.state_dict(), _exhausted(iterator, saved)):
        again = Pipeline.range(12).shuffle().batch(4).with_options(seed=3)
        again.load_state_dict(state)
        rest = [batch.tolist() for batch in again]
        assert rest in ([], epochs[1])
        if not rest:
            assert [batch.tolist() for batch in again] == epochs[1]


def _exhausted(iterator, pipeline):
    assert next(iterator, None) is None
    return pipeline.state_dict()


def test_a_pipeline_that_was_used_takes_a_state():
    """Loading into a pipeline that has been read before is not ignored (streaming#437)."""
    pipeline = Pipeline.range(12).shuffle().batch(4).with_options(seed=3)
    first = iter(pipeline)
    next(first)
    state, rest = first.state_dict(), [batch.tolist() for batch in first]
    list(pipeline), list(pipeline)
    pipeline.load_state_dict(state)
    assert [batch.tolist() for batch in pipeline] == rest


def test_a_shuffle_buffer_resumes_exactly():
    """No element is lost or repeated (datasets#7901, grain#1178), over numbers and over a stream."""
    for source in (Pipeline.range(500), Pipeline.range(700).filter(lambda x: x % 7 < 5)):
        pipeline = source.shuffle(50).with_options(seed=1)
        whole = list(pipeline)
        again = source.shuffle(50).with_options(seed=1)
        iterator = iter(again)
        begun = [next(iterator) for _ in range(123)]
        third = source.shuffle(50).with_options(seed=1)
        third.load_state_dict(json.loads(json.dumps(iterator.state_dict())))
        assert begun + list(third) == whole
        assert sorted(whole) == list(source.with_options(seed=1)) != whole


def test_the_state_stays_small():
    """Under 200 bytes for a linear pipeline, at most 16 more for each element held."""
    pipeline = Pipeline.range(10**9).shuffle().map(drawn).filter(kept).batch(64).with_options(seed=1)
    iterator = iter(pipeline)
    for _ in range(3):
        next(iterator)
    assert len(json.dumps(iterator.state_dict())) < 200
    held = iter(Pipeline.range(10**6).filter(lambda x: x % 3).shuffle(100).with_options(seed=1))
    for _ in range(1000):
        next(held)
    assert len(json.dumps(held.state_dict())) < 200 + 16 * 100


def plus_one(x):
    return x + 1


def test_a_pipeline_with_nothing_random_needs_no_seed(python):
    """Without a seed a pipeline is read if a seed decides nothing in it; each stage that draws is named in the error."""
    source = (
        "from samebits.data import Pipeline\n"
        "import random, torch\n"
        "def plus(x): return x + 1\n"
        "def noisy(x): return x + random.random()\n"
        "def keyed(x, key): return x\n"
        "numbers = Pipeline.range(6)\n"
        "print(*numbers.map(plus).repeat(2).batch(3))\n"
        "print(*Pipeline.zip(numbers, numbers.skip(1)).filter(sum).take(2))\n"
        "assert list(Pipeline.random(seed=4).take(3)) == list(Pipeline.random(seed=4).take(3))\n"
        "for one in (numbers.shuffle(), numbers.filter(bool).shuffle(3), numbers.map(noisy), numbers.map(keyed),\n"
        "            Pipeline.random().take(1), Pipeline.zip(numbers, numbers.shuffle()), numbers.map(torch.nn.Dropout())):\n"
        "    try:\n"
        "        list(one)\n"
        "        print('read')\n"
        "    except Exception as error:\n"
        "        print(type(error).__name__, str(error).split(' for ')[1].split('(')[0])\n"
    )
    lines = python(source).stdout.splitlines()
    assert lines[:3] == [
        "tensor([1, 2, 3]) tensor([4, 5, 6]) tensor([1, 2, 3]) tensor([4, 5, 6])",
        "(0, 1) (1, 2)",
        "UnseededError shuffle",
    ]
    assert lines[3:] == [
        f"UnseededError {stage}" for stage in ("shuffle", "map", "map", "random", "shuffle", "map")
    ]


@settings(max_examples=40)
@given(sources, st.integers(0, 2**31), sizes)
def test_where_no_seed_is_needed_none_matters(pipeline, seed, size):
    """Pipelines that are read without a seed have the same elements with any."""
    for one in (
        pipeline.map(plus_one).batch(size),
        pipeline.filter(kept).repeat(2),
        pipeline.enumerate().take(size),
    ):
        assert one._stage.needs_seed() is None
        first, other = ([repr(x) for x in one.with_options(seed=s)] for s in (seed, 0))
        assert first == other


def test_a_seed_that_is_set_later_holds_from_the_next_iteration_on():
    """A pipeline and a loader made before `set_random_seed` shuffle by it; one with a seed of its own does not."""
    samebits.set_random_seed(1)
    made = Pipeline.range(50).shuffle()
    loader = samebits.data.DataLoader(range(50), shuffle=True)
    own = made.with_options(seed=9)
    begun, before = iter(made), list(own)
    first = next(begun)
    samebits.set_random_seed(2)
    later = list(made), torch.cat(list(loader)).tolist()
    anew = (
        list(Pipeline.range(50).shuffle()),
        torch.cat(list(samebits.data.DataLoader(range(50), shuffle=True))).tolist(),
    )
    samebits.set_random_seed(1)
    assert [first, *begun] == list(Pipeline.range(50).shuffle()) != later[0]
    own._next = NextEpoch()
    assert list(own) == before
    assert later[1] == anew[1]
